"""What responses of all APIs have in common: events, token counts, timings, log-probabilities."""

from __future__ import annotations

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from pagedrun.request import Finished, TokenLogprob
from pagedrun.server.answers import Answers, Piece
from pagedrun.server.errors import ApiError
from pagedrun.server.serving import Serving
from pagedrun.step import Vocab
from pagedrun.units import rate


def sse(data: Any, event: str | None = None) -> bytes:
    """One server-sent event."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {text}\n\n".encode()


def new_id(prefix: str) -> str:
    """An id that no other has."""
    return f"{prefix}{secrets.token_hex(16)}"


class Presenter(ABC):
    """Makes one request's response out of its answers: in pieces, as events, or as a whole. prefix: of its id."""

    prefix: ClassVar[str]

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.id = new_id(self.prefix)
        self.created = int(time.time())

    @abstractmethod
    def started(self, answers: Answers) -> Iterator[bytes]:
        """Events before the first piece."""

    @abstractmethod
    def piece(self, answers: Answers, piece: Piece) -> Iterator[bytes]:
        """Events for a piece."""

    @abstractmethod
    def ended(self, answers: Answers) -> Iterator[bytes]:
        """Events after the last piece."""

    @abstractmethod
    def whole(self, answers: Answers) -> dict[str, Any]:
        """The response of a request that does not stream."""

    def failed(self, error: ApiError) -> bytes:
        """The event for an error after the first one; nothing follows it."""
        return sse(error.body)

    def error_body(self, error: ApiError) -> dict[str, Any]:
        """The response for an error before the first event."""
        return error.body


def usage_of(answers: Answers) -> dict[str, Any]:
    """Token counts. A prompt that several choices answer counts once."""
    ended = [(c, c.finished.usage) for c in answers.choices if c.finished is not None]
    prompts: dict[int, tuple[int, int]] = {}
    for (_, usage), request in zip(ended, answers.task.requests, strict=True):
        cached = max(usage.cached_tokens, prompts.get(id(request.prompt), (0, 0))[1])
        prompts[id(request.prompt)] = (usage.prompt_tokens, cached)
    n_prompt = sum(n for n, _ in prompts.values())
    n_chosen = sum(usage.completion_tokens for _, usage in ended)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_chosen,
        "total_tokens": n_prompt + n_chosen,
        "prompt_tokens_details": {"cached_tokens": sum(cached for _, cached in prompts.values())},
        "completion_tokens_details": {"reasoning_tokens": sum(c.n_reasoning for c, _ in ended)},
    }


def timings_of(finished: Finished) -> dict[str, Any]:
    """Speeds of one answer, by llama-server's names; `queued_ms` is ours."""
    usage, timings = finished.usage, finished.timings
    n_read = usage.prompt_tokens - usage.cached_tokens
    n_after_first = max(usage.completion_tokens - 1, 0)  # the first token comes out of reading the prompt
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": n_read,
        "prompt_ms": round(timings.prompt_s * 1e3, 3),
        "prompt_per_second": rate(n_read, timings.prompt_s),
        "predicted_n": usage.completion_tokens,
        "predicted_ms": round(timings.decode_s * 1e3, 3),
        "predicted_per_second": rate(n_after_first, timings.decode_s),
        "queued_ms": round(timings.queued_s * 1e3, 3),
    }


def token_logprob(vocab: Vocab, found: TokenLogprob) -> dict[str, Any]:
    """One entry of a chat's `logprobs.content`."""
    top = [_one(vocab, token, logprob) for token, logprob in found.top]
    return {**_one(vocab, found.token, found.logprob), "top_logprobs": top}


def _one(vocab: Vocab, token: int, logprob: float) -> dict[str, Any]:
    piece = vocab.piece(token, special=True)
    # OpenAI's least: JSON has no minus infinity
    return {"token": piece.decode("utf-8", "replace"), "logprob": max(logprob, -9999.0), "bytes": list(piece)}
