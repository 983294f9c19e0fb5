"""What was said so far. Immutable: a failed or abandoned answer simply leaves the old value in place.

turns    [ 0 | 1 | 2 | 3 | 4 ]
           dropped │  what the model sees (after the system prompt)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pagedrun.chat import Message
from pagedrun.errors import UsageError
from pagedrun.request import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One question and its answer. `end` says how the answer ended; CANCELLED is an interrupted one."""

    question: str
    answer: str = ""
    reasoning: str = ""
    end: FinishReason = FinishReason.STOP

    def messages(self) -> tuple[Message, ...]:
        """The turn as the chat template takes it."""
        answer = Message(role="assistant", content=self.answer, reasoning=self.reasoning)
        return Message(role="user", content=self.question), answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Turns under a system prompt. The oldest `dropped` turns are kept here but no longer sent to the model."""

    system: str = ""
    turns: tuple[Turn, ...] = ()
    dropped: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.dropped <= len(self.turns):
            raise ValueError(f"{self.dropped} of {len(self.turns)} turns cannot be dropped")

    @property
    def active(self) -> tuple[Turn, ...]:
        """The turns the model sees."""
        return self.turns[self.dropped :]

    def messages(self, question: str | None = None) -> tuple[Message, ...]:
        """System prompt, the turns that are not dropped, and the question that is about to be asked."""
        system = (Message(role="system", content=self.system),) if self.system else ()
        said = tuple(message for turn in self.active for message in turn.messages())
        asked = () if question is None else (Message(role="user", content=question),)
        return system + said + asked

    def add(self, turn: Turn) -> Conversation:
        """The conversation with one more turn."""
        return replace(self, turns=(*self.turns, turn))

    def undo(self) -> Conversation:
        """The conversation without its last turn. Raises UsageError when there is none."""
        if not self.turns:
            raise UsageError("nothing has been said yet")
        return replace(self, turns=self.turns[:-1], dropped=min(self.dropped, len(self.turns) - 1))

    def drop(self, count: int) -> Conversation:
        """Stop sending the oldest `count` of the active turns. Raises UsageError when there are fewer."""
        if not 1 <= count <= len(self.active):
            raise UsageError(f"there are {len(self.active)} turns to drop, not {count}")
        return replace(self, dropped=self.dropped + count)

    def with_system(self, text: str) -> Conversation:
        """The same turns under another system prompt; empty for none."""
        return replace(self, system=text)

    def clear(self) -> Conversation:
        """Nothing said yet, under the same system prompt."""
        return Conversation(system=self.system)
