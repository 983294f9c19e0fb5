"""How much a quantised model differs from its source on some text: perplexity of both, KL divergence between them.

As llama-perplexity counts: the text in chunks of 512 tokens, each read anew, and of each the second half counted, so
that every token that counts has at least 256 before it.

    perplexity       exp of the mean of -log p(token that follows)
    KL divergence    mean of sum p log(p / q) over the vocabulary, p of the source, q of the result
    same top         how often both find the same token likeliest
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pagedrun.errors import ModelFileError, UsageError
from pagedrun.units import count

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

CHUNK = 512
_FIRST = CHUNK // 2
_MIN_CHUNKS = 2


@dataclass(frozen=True, slots=True)
class Comparison:
    """ppl_*: perplexity. kl_*: in nats. same_top: share, 0 to 1. n_tokens: how many counted."""

    ppl_source: float
    ppl_result: float
    kl_mean: float
    kl_max: float
    same_top: float
    n_tokens: int


def tokens_of(model: Path, text: str, option: str) -> list[int]:
    """The text in the model's vocabulary, as llama.cpp's tools take it: without the end of its last line.

    Raises UsageError, which names `option`, when it is too short for --check and --calibrate; ModelFileError.
    """
    from pagedrun.native.evaluator import tokenize

    try:
        tokens = tokenize(model, text.removesuffix("\n"))
    except ModelFileError as e:
        raise ModelFileError(e.message, hint=f"its tokenizer has to read the text: leave {option} out") from e
    if len(tokens) < _MIN_CHUNKS * CHUNK:
        raise UsageError(
            f"{option}: the text has {count(len(tokens), 'token')}, and at least {_MIN_CHUNKS * CHUNK:,} are needed",
            hint="take a longer text: some 100 KB, better of what the model is to be good at",
        )
    return tokens


def chunks_of(tokens: Sequence[int], limit: int | None) -> list[Sequence[int]]:
    """The whole chunks of a text, at most `limit` of them."""
    n_chunks = min(len(tokens) // CHUNK, limit or len(tokens))
    return [tokens[i * CHUNK : (i + 1) * CHUNK] for i in range(n_chunks)]


def compare(
    source: Path, result: Path, chunks: Sequence[Sequence[int]], *, threads: int, on_chunk: Callable[[int, int], None]
) -> Comparison:
    """Read the chunks with both models. on_chunk gets (chunks done, in all). Raises ModelError, EngineError."""
    from pagedrun.native.evaluator import Evaluator

    sums = _Sums()
    on_chunk(0, len(chunks))
    with closing(Evaluator(source, CHUNK, threads)) as base, closing(Evaluator(result, CHUNK, threads)) as other:
        if base.n_vocab != other.n_vocab:
            raise UsageError("the two models have different vocabularies")
        for number, chunk in enumerate(chunks, 1):
            # The last token has nothing behind it to foretell.
            pairs = zip(base.read(chunk, _FIRST)[:-1], other.read(chunk, _FIRST)[:-1], chunk[_FIRST + 1 :], strict=True)
            for p_logits, q_logits, token in pairs:
                sums.add(p_logits, q_logits, token)
            on_chunk(number, len(chunks))
    return sums.comparison()


class _Sums:
    def __init__(self) -> None:
        self.n = self.same = 0
        self.nll_source = self.nll_result = self.kl = self.kl_max = 0.0

    def add(self, p_logits: npt.NDArray[np.float32], q_logits: npt.NDArray[np.float32], token: int) -> None:
        """One token: the logits of both models for it, and which it was."""
        p_log, q_log = _log_softmax(p_logits), _log_softmax(q_logits)
        kl = _kl_divergence(p_log, q_log)
        self.n += 1
        self.same += int(p_log.argmax() == q_log.argmax())
        self.nll_source -= float(p_log[token])
        self.nll_result -= float(q_log[token])
        self.kl += kl
        self.kl_max = max(self.kl_max, kl)

    def comparison(self) -> Comparison:
        """The means."""
        return Comparison(
            math.exp(self.nll_source / self.n),
            math.exp(self.nll_result / self.n),
            self.kl / self.n,
            self.kl_max,
            self.same / self.n,
            self.n,
        )


def _log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    import numpy as np

    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    return wide


def _kl_divergence(p_log: npt.NDArray[np.float64], q_log: npt.NDArray[np.float64]) -> float:
    import numpy as np

    return max(float(np.dot(np.exp(p_log), p_log - q_log)), 0.0)
