"""What chat completions and completions have in common: OpenAI's objects, as a whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pagedrun import __version__
from pagedrun.server.answers import Answers
from pagedrun.server.replies import Presenter, sse, timings_of, usage_of
from pagedrun.server.serving import Serving

DONE = b"data: [DONE]\n\n"
FINGERPRINT = f"pagedrun-{__version__}"


class ChunkPresenter(Presenter):
    """kind, chunk: what OpenAI calls the whole, and a part of a stream."""

    kind: ClassVar[str]
    chunk: ClassVar[str]

    def __init__(self, serving: Serving, *, wants_usage: bool = False, wants_logprobs: bool = False) -> None:
        super().__init__(serving)
        self.wants_usage = wants_usage
        self.wants_logprobs = wants_logprobs

    def ended(self, answers: Answers) -> Iterator[bytes]:
        """Token counts, if asked for, and the end mark."""
        if self.wants_usage:
            yield sse({**self._head(self.chunk), "choices": [], "usage": usage_of(answers)})
        yield DONE

    def _chunk(self, choice: Mapping[str, Any], **more: Any) -> bytes:
        usage = {"usage": None} if self.wants_usage else {}
        return sse({**self._head(self.chunk), "choices": [choice], **usage, **more})

    def _object(self, choices: list[dict[str, Any]], answers: Answers) -> dict[str, Any]:
        """The whole, with timings: its own, or those of each choice where there are several."""
        found = {**self._head(self.kind), "choices": choices, "usage": usage_of(answers)}
        timings = [timings_of(choice.finished) for choice in answers.choices if choice.finished is not None]
        if len(timings) == 1:
            return {**found, "timings": timings[0]}
        for choice, mine in zip(choices, timings, strict=True):
            choice["timings"] = mine
        return found

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.serving.name,
            "system_fingerprint": FINGERPRINT,
        }
