"""What resting conversations begin with: who has the longest beginning in common with a prompt.

    "You are a helpful" --+-- " cook. How" --+-- " long do eggs"      conversation 3
                          |                  +-- " do I"              conversation 8 ends here
                          |                           +-- " fry"      conversation 5
                          +-- " poet."                                conversation 1

A radix tree over tokens: an edge is a run of tokens, and two edges out of one node begin differently. What several
begin with is there once. The way down a prompt compares every token once and looks at one child of each node, however
many conversations there are. (Hashes of blocks would name all that share a system prompt as candidates of equal
standing, and leave the block after it to be compared with each of them.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pagedrun.kv.budget import Account
from pagedrun.kv.ids import ConversationId

Tokens: TypeAlias = npt.NDArray[np.int32]

#: Bytes that a node takes beside its tokens, and a conversation beside its node, in CPython 3.10 to 3.13, about.
_NODE_BYTES = 720
_ENTRY_BYTES = 250


@dataclass(slots=True, eq=False)
class _Node:
    """tokens: of the edge from the parent. children: by their first token; ends: conversations that end here. In both
    the one used last comes last.
    """

    parent: _Node | None
    tokens: Tokens
    children: dict[int, _Node] = field(default_factory=dict)
    ends: dict[ConversationId, None] = field(default_factory=dict)


class PrefixCache:
    """Conversations that rest, by their tokens. Iterating goes through them, the one that was used longest ago first.

    nbytes: what all this takes, about; account: is told so.
    """

    def __init__(self, account: Account | None = None) -> None:
        self._account = account
        self._root = _Node(None, np.zeros(0, np.int32))
        self._entries: dict[ConversationId, tuple[_Node, int]] = {}
        self._n_nodes = 0
        self._n_tokens = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ConversationId]:
        return iter(self._entries)

    def __contains__(self, conversation: ConversationId) -> bool:
        return conversation in self._entries

    @property
    def nbytes(self) -> int:
        """Bytes of main memory."""
        return 4 * self._n_tokens + _NODE_BYTES * self._n_nodes + _ENTRY_BYTES * len(self._entries)

    def length(self, conversation: ConversationId) -> int:
        """How many tokens a conversation has here."""
        return self._entries[conversation][1]

    def tokens(self, conversation: ConversationId) -> list[int]:
        """A conversation's tokens."""
        node: _Node | None = self._entries[conversation][0]
        edges = []
        while node is not None:
            edges.append(node.tokens)
            node = node.parent
        found: list[int] = np.concatenate(edges[::-1]).tolist()
        return found

    def add(self, conversation: ConversationId, tokens: Sequence[int]) -> None:
        """A conversation rests, with these tokens. Raises ValueError when it does already."""
        if conversation in self._entries:
            raise ValueError(f"conversation {conversation} rests already")
        wanted = _array(tokens)
        path = self._descend(wanted)
        node, at = path[-1]
        end = self._length_above(path) + len(node.tokens)
        if at < end:
            node = self._split(node, len(node.tokens) - (end - at))
        if at < len(wanted):
            node = self._hang(node, wanted[at:].copy())
        node.ends[conversation] = None
        self._entries[conversation] = node, len(wanted)
        self._touch(node)
        self._tell()

    def remove(self, conversation: ConversationId) -> None:
        """A conversation does not rest any more."""
        node, _ = self._entries.pop(conversation)
        del node.ends[conversation]
        while node.parent is not None and not node.ends and not node.children:
            del node.parent.children[int(node.tokens[0])]
            self._n_nodes -= 1
            self._n_tokens -= len(node.tokens)
            node = node.parent
        if node.parent is not None and not node.ends and len(node.children) == 1:
            self._join(node)
        self._tell()

    def touch(self, conversation: ConversationId) -> None:
        """A conversation was used: it is the last to be forgotten, and the first to be found among equals."""
        node, length = self._entries.pop(conversation)
        self._entries[conversation] = node, length
        del node.ends[conversation]
        node.ends[conversation] = None
        self._touch(node)

    def find(self, tokens: Sequence[int]) -> tuple[ConversationId, int] | None:
        """Who has the longest beginning in common with these tokens, and how long that is; None: nobody has any."""
        return next(self.alike(tokens), None)

    def alike(self, tokens: Sequence[int]) -> Iterator[tuple[ConversationId, int]]:
        """All that begin like these tokens, and for how many, the longest first; among equals first those that end
        there, then those used last. Nothing may be changed in between.
        """
        seen: _Node | None = None
        for node, common in reversed(self._descend(_array(tokens))):
            if common:
                yield from ((conversation, common) for conversation in _below(node, seen))
            seen = node

    def covered(self, tokens: Sequence[int]) -> list[ConversationId]:
        """Conversations of which these tokens are a continuation, or all."""
        wanted = _array(tokens)
        path = self._descend(wanted)
        return [c for node, at in path for c in node.ends if self._entries[c][1] <= at]

    # inside

    def _tell(self) -> None:
        if self._account is not None:
            self._account.resize(self.nbytes)

    def _descend(self, wanted: Tokens) -> list[tuple[_Node, int]]:
        """The nodes on the way down these tokens, and how many of them agree there; of the last node's edge, the tokens
        from some one on may differ, or be missing.
        """
        node, at = self._root, 0
        path = [(node, at)]
        while at < len(wanted):
            child = node.children.get(int(wanted[at]))
            if child is None:
                break
            n = _common(child.tokens, wanted[at:])
            node, at = child, at + n
            path.append((node, at))
            if n < len(child.tokens):
                break
        return path

    @staticmethod
    def _length_above(path: list[tuple[_Node, int]]) -> int:
        return path[-2][1] if len(path) > 1 else 0

    def _hang(self, parent: _Node, tokens: Tokens) -> _Node:
        """A new leaf."""
        node = _Node(parent, tokens)
        parent.children[int(tokens[0])] = node
        self._n_nodes += 1
        self._n_tokens += len(tokens)
        return node

    def _split(self, node: _Node, n: int) -> _Node:
        """A node in the middle of an edge, after `n` tokens of it."""
        assert node.parent is not None  # the root's edge is empty
        upper = _Node(node.parent, node.tokens[:n].copy())
        node.parent.children[int(node.tokens[0])] = upper
        node.parent, node.tokens = upper, node.tokens[n:].copy()
        upper.children[int(node.tokens[0])] = node
        self._n_nodes += 1
        return upper

    def _join(self, node: _Node) -> None:
        """A node at which nothing ends or parts: its child takes its place."""
        (child,) = node.children.values()
        assert node.parent is not None
        child.parent, child.tokens = node.parent, np.concatenate([node.tokens, child.tokens])
        node.parent.children[int(node.tokens[0])] = child
        self._n_nodes -= 1

    @staticmethod
    def _touch(node: _Node) -> None:
        while node.parent is not None:
            siblings, first = node.parent.children, int(node.tokens[0])
            del siblings[first]
            siblings[first] = node
            node = node.parent


def _below(top: _Node, but: _Node | None) -> Iterator[ConversationId]:
    """Conversations that end at a node or below it, but for those of one child, in the order of `alike`."""
    stack = [iter((top,))]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
        elif node is not but:
            yield from reversed(node.ends)
            stack.append(reversed(node.children.values()))


def _array(tokens: Sequence[int]) -> Tokens:
    return np.asarray(tokens, np.int32)


def _common(a: Tokens, b: Tokens) -> int:
    """Length of the common beginning."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    first = int(differs.argmax())
    return first if differs[first] else n
