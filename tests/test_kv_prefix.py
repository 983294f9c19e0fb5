"""The index of resting conversations, against looking at each of them."""

from __future__ import annotations

import random
import tracemalloc

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pagedrun.kv import PrefixCache, prefix
from pagedrun.kv.ids import ConversationId


def filled(*texts: str) -> PrefixCache:
    cache = PrefixCache()
    for number, text in enumerate(texts):
        cache.add(ConversationId(number), list(text.encode()))
    return cache


def alike(cache: PrefixCache, text: str) -> list[tuple[int, int]]:
    return list(cache.alike(list(text.encode())))


def test_the_longest_common_beginning_is_found() -> None:
    cache = filled("the cat sat", "the cow", "a dog")
    assert cache.find(list(b"the cat ran")) == (0, 8)
    assert cache.find(list(b"the cows")) == (1, 7)
    assert cache.find(list(b"a")) == (2, 1)
    assert cache.find(list(b"xyz")) is None and cache.find(list(b"")) is None
    assert PrefixCache().find([1]) is None


def test_who_ends_where_the_prompt_parts_comes_first_then_who_was_used_last() -> None:
    cache = filled("abc", "abcd", "abce", "ab", "x")
    assert alike(cache, "abcz") == [(0, 3), (2, 3), (1, 3), (3, 2)]
    cache.touch(ConversationId(1))
    assert alike(cache, "abcz") == [(0, 3), (1, 3), (2, 3), (3, 2)]


def test_the_oldest_comes_first_in_line() -> None:
    cache = filled("abc", "abd", "x")
    cache.touch(ConversationId(0))
    assert list(cache) == [1, 2, 0]


def test_what_a_longer_one_covers() -> None:
    cache = filled("abc", "ab", "abcd", "abx", "abc")
    assert sorted(cache.covered(list(b"abcc"))) == [0, 1, 4]
    assert sorted(cache.covered(list(b"abc"))) == [0, 1, 4]
    assert cache.covered(list(b"a")) == []


def test_nobody_rests_twice() -> None:
    cache = filled("abc")
    with pytest.raises(ValueError, match="rests already"):
        cache.add(ConversationId(0), [1, 2])


def test_a_prompt_is_compared_once_however_many_share_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens looked at, of 5,000 conversations over one system prompt of 1,000 tokens."""
    rng = random.Random(1)
    system = [rng.randrange(1000) for _ in range(1000)]
    cache = PrefixCache()
    looked_at = 0
    common = prefix._common

    def counting(a: prefix.Tokens, b: prefix.Tokens) -> int:
        nonlocal looked_at
        looked_at += min(len(a), len(b))
        return common(a, b)

    monkeypatch.setattr(prefix, "_common", counting)
    questions = [[rng.randrange(50_000) for _ in range(40)] for _ in range(5000)]
    for number, question in enumerate(questions):
        looked_at = 0
        cache.add(ConversationId(number), system + question)
        assert looked_at <= 1040
    looked_at = 0
    assert cache.find(system + questions[2500] + [7, 7]) == (2500, 1040)
    assert looked_at <= 1042
    assert cache._n_tokens <= 1000 + 5000 * 40, "the system prompt is there once"


def test_it_knows_what_it_takes() -> None:
    rng = random.Random(1)
    tokens = [[1, 2, 3] * 100 + [rng.randrange(1000) for _ in range(300)] for _ in range(1000)]
    tracemalloc.start()
    cache = PrefixCache()
    for number, t in enumerate(tokens):
        cache.add(ConversationId(number), t)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.7 * taken < cache.nbytes < 1.4 * taken
    for number in range(1000):
        cache.remove(ConversationId(number))
    assert cache.nbytes == 0


class PrefixMachine(RuleBasedStateMachine):
    """Any order of coming, being used and going, over few letters, so that much begins alike."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache()
        self.model: dict[ConversationId, list[int]] = {}
        self.number = 0

    @rule(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=12), follow=st.booleans(), data=st.data())
    def add(self, tokens: list[int], follow: bool, data: st.DataObject) -> None:
        if self.model and follow:
            tokens = data.draw(st.sampled_from(list(self.model.values()))) + tokens
        self.cache.add(ConversationId(self.number), tokens)
        self.model[ConversationId(self.number)] = tokens
        self.number += 1

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(list(self.model)))
        self.cache.remove(gone)
        del self.model[gone]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        used = data.draw(st.sampled_from(list(self.model)))
        self.cache.touch(used)
        self.model[used] = self.model.pop(used)

    @rule(tokens=st.lists(st.integers(0, 2), max_size=20), follow=st.booleans(), data=st.data())
    def find(self, tokens: list[int], follow: bool, data: st.DataObject) -> None:
        if self.model and follow:
            tokens = data.draw(st.sampled_from(list(self.model.values())))[: data.draw(st.integers(0, 15))] + tokens
        lengths = {c: common(t, tokens) for c, t in self.model.items() if common(t, tokens)}
        found = list(self.cache.alike(tokens))
        assert dict(found) == lengths and len(found) == len(lengths)
        assert [n for _, n in found] == sorted(lengths.values(), reverse=True)
        assert self.cache.find(tokens) == (found[0] if found else None)
        covered = {c for c, t in self.model.items() if tokens[: len(t)] == t}
        assert set(self.cache.covered(tokens)) == covered

    @invariant()
    def it_is_the_smallest_tree(self) -> None:
        assert list(self.cache) == list(self.model)
        assert {c: self.cache.tokens(c) for c in self.cache} == self.model
        assert {c: self.cache.length(c) for c in self.cache} == {c: len(t) for c, t in self.model.items()}
        nodes, n_tokens, stack = 0, 0, [self.cache._root]
        while stack:
            node = stack.pop()
            for first, child in node.children.items():
                assert child.parent is node and child.tokens[0] == first
                assert child.ends or len(child.children) > 1
                nodes, n_tokens = nodes + 1, n_tokens + len(child.tokens)
                stack.append(child)
        assert (nodes, n_tokens) == (self.cache._n_nodes, self.cache._n_tokens)


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


TestPrefixMachine = PrefixMachine.TestCase
