"""How much room the context has left for an answer, and which turns would have to go to make more.

|<------------------- size ------------------->|
|<------- used (the prompt) ------->|<- left ->|   left < low_mark: warn; left < ANSWER_MINIMUM: offer to drop
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from pagedrun.cli.repl.conversation import Conversation

#: Tokens below which an answer is hardly worth starting.
ANSWER_MINIMUM = 64

#: Counts the tokens of the prompt that a conversation and the next question make.
Counter = Callable[[Conversation, str], int]


def low_mark(size: int) -> int:
    """Tokens left below which a warning is due: a tenth, but at least 512 and at most 4096.

    In a context so small that 512 are most of it, a quarter.
    """
    return min(max(512, size // 10), 4096, size // 4)


@dataclass(frozen=True, slots=True)
class Room:
    """A prompt of `used` tokens in a context of `size`."""

    used: int
    size: int

    @property
    def left(self) -> int:
        """Tokens the answer can have; negative when the prompt alone is too long."""
        return self.size - self.used

    @property
    def is_low(self) -> bool:
        """Whether the answer may well be cut off."""
        return self.left < low_mark(self.size)

    @property
    def is_too_little(self) -> bool:
        """Whether there is no room for an answer worth the name."""
        return self.left < min(ANSWER_MINIMUM, self.size // 16)

    @property
    def fits(self) -> bool:
        """Whether the prompt can be sent at all, with one token for an answer."""
        return self.left >= 1


@dataclass(frozen=True, slots=True)
class DropPlan:
    """Dropping the `turns` oldest turns takes the prompt from `before` to `after` tokens."""

    turns: int
    before: int
    after: int

    @property
    def frees(self) -> int:
        """Tokens won."""
        return self.before - self.after


def plan_drop(conversation: Conversation, question: str, count: Counter, size: int) -> DropPlan | None:
    """The fewest oldest turns that must go for a comfortable answer, or all if that is not enough.

    None when there is nothing to drop, or dropping everything still would not let the prompt fit.
    """
    turns = len(conversation.active)
    if not turns:
        return None

    def after(dropped: int) -> int:
        return count(conversation.drop(dropped), question)

    comfortable = size - low_mark(size)
    # Each turn less makes the prompt shorter, so the first that is short enough can be bisected for.
    first = bisect_left(range(1, turns), True, key=lambda n: after(n) <= comfortable) + 1
    plan = DropPlan(first, count(conversation, question), after(first))
    return plan if Room(plan.after, size).fits else None
