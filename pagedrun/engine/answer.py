"""An answer in the making: tokens in, events out."""

from __future__ import annotations

import statistics
from array import array
from dataclasses import dataclass, field

from pagedrun.engine.commands import Sink, Submit
from pagedrun.errors import PagedrunError
from pagedrun.request import Finished, FinishReason, Timings, Usage
from pagedrun.scheduling import Sequence
from pagedrun.step import Sampled, Vocab
from pagedrun.text import TextAssembler


@dataclass(slots=True)
class Answer:
    """Where an answer's text goes, and when things happened (seconds, monotonic clock).

    shown: special tokens that appear as text, because whoever parses the answer needs them. gaps: seconds between its
    tokens.
    """

    sequence: Sequence
    sink: Sink
    vocab: Vocab
    text: TextAssembler
    shown: frozenset[int]
    submitted: float
    admitted: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    gaps: array[float] = field(default_factory=lambda: array("d"))

    @classmethod
    def to(cls, asked: Submit, vocab: Vocab, now: float) -> Answer:
        """One that has nothing yet."""
        request = asked.sequence.request
        shown = _single_tokens(vocab, request.preserved_tokens)
        return cls(asked.sequence, asked.sink, vocab, TextAssembler(request.stop), shown, now)

    def chosen(self, now: float) -> float:
        """A token was; answers how long the answer waited for it."""
        gap = now - self.last_token if self.first_token else 0.0
        if self.first_token:
            self.gaps.append(gap)
        else:
            self.first_token = now
        self.last_token = now
        return gap

    def add(self, sampled: Sampled, max_tokens: int) -> FinishReason | None:
        """One more token, whose text goes out; answers why it was the last, if it was.

        max_tokens: how long prompt and answer can be together.
        """
        sequence, most = self.sequence, self.sequence.request.max_tokens
        sequence.tokens.append(sampled.token)
        if self.vocab.is_eog(sampled.token):
            return FinishReason.STOP
        piece = self.vocab.piece(sampled.token, special=sampled.token in self.shown)
        delta = self.text.push(sampled.token, piece, sampled.logprob)
        if delta is not None:
            self.sink(delta)
        if self.text.stopped is not None:
            return FinishReason.STOP
        if most is not None and sequence.n_generated >= most:
            return FinishReason.LENGTH
        if len(sequence.tokens) >= max_tokens:  # one more could be chosen, but nothing could follow it
            return FinishReason.CONTEXT
        return None

    def flush(self) -> None:
        """The text that was held back, as it might have become a stop string."""
        if (rest := self.text.finish()) is not None:
            self.sink(rest)

    def end(self, reason: FinishReason, now: float, error: PagedrunError | None = None) -> None:
        """The last event."""
        sequence = self.sequence
        usage = Usage(sequence.n_prompt, sequence.n_generated, sequence.cached)
        self.sink(Finished(reason, usage, self._timings(now), error, self.text.stopped))

    def _timings(self, now: float) -> Timings:
        admitted = self.admitted or now
        first = self.first_token or now
        gaps = (statistics.median(self.gaps), max(self.gaps)) if self.gaps else ()
        return Timings(admitted - self.submitted, first - admitted, now - first, *gaps)


def _single_tokens(vocab: Vocab, texts: tuple[str, ...]) -> frozenset[int]:
    """The ids of those texts that are one token of the vocabulary."""
    ids = (vocab.tokenize(text, add_special=False, parse_special=True) for text in texts)
    return frozenset(i[0] for i in ids if len(i) == 1)
