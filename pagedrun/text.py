"""From token pieces to text: whole characters only, stop strings recognised wherever they are cut.

    piece bytes --Utf8 decoder--> characters --StopMatcher--> text that may be shown

`TextAssembler` is both in a row, for one answer.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from pagedrun.request import TextDelta, TokenLogprob


class StopMatcher:
    """Finds the first of some stop strings in text that arrives in pieces.

    Text that may yet turn out to be the beginning of a stop string is held back.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(s for s in stops if s)
        self._held = ""

    @property
    def held(self) -> str:
        """Text held back: a proper beginning of a stop string."""
        return self._held

    def feed(self, text: str) -> tuple[str, str | None]:
        """Returns (text that is safe to show, the stop string that matched or None).

        After a match the rest of the text is dropped; do not feed further.
        """
        text = self._held + text
        found = [(at, -len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, _, stop = min(found)
            self._held = ""
            return text[:at], stop
        keep = self._longest_beginning(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def flush(self) -> str:
        """The held text, once no more can follow."""
        held, self._held = self._held, ""
        return held

    def _longest_beginning(self, text: str) -> int:
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(text)), longest, -1):
                if stop.startswith(text[len(text) - size :]):
                    longest = size
                    break
        return longest


class TextAssembler:
    """Turns one answer's tokens into deltas. Feed until `stopped` is set, then `finish`."""

    def __init__(self, stops: Iterable[str]) -> None:
        # Invalid bytes become U+FFFD; an incomplete character waits for its remaining bytes.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._matcher = StopMatcher(stops)
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self.stopped: str | None = None

    def push(self, token: int, piece: bytes, logprob: TokenLogprob | None = None) -> TextDelta | None:
        """The delta that this token completes, if any. Sets `stopped` when a stop string was completed."""
        self._tokens.append(token)
        if logprob is not None:
            self._logprobs.append(logprob)
        text, self.stopped = self._matcher.feed(self._decoder.decode(piece))
        waiting = self._matcher.held or self._decoder.getstate()[0]
        return self._emit(text) if text and not waiting else self._emit_text_only(text)

    def finish(self) -> TextDelta | None:
        """What was held back, once the answer has ended. Bytes of an incomplete character are dropped."""
        if self.stopped is not None:
            return None
        return self._emit(self._matcher.flush())

    def _emit(self, text: str) -> TextDelta | None:
        if not text and not self._logprobs:
            return None
        delta = TextDelta(text, tuple(self._tokens), tuple(self._logprobs))
        self._tokens, self._logprobs = [], []
        return delta

    @staticmethod
    def _emit_text_only(text: str) -> TextDelta | None:
        return TextDelta(text) if text else None
