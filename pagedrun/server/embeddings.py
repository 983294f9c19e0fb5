"""OpenAI's /v1/embeddings: what may be asked, and vectors as lists of numbers or as base64."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Discriminator, Field, Tag

from pagedrun.embedding import EmbeddingService, Vectors, normalized
from pagedrun.server.completions import Ids
from pagedrun.server.errors import ApiError, invalid, not_ready, unsupported
from pagedrun.server.fields import TAG, Strict, prompt_tag
from pagedrun.server.models import Models
from pagedrun.server.serving import Loaded, of_kind
from pagedrun.server.tokens import check_tokens
from pagedrun.units import count

MOST_INPUTS = 2048  # OpenAI's

Inputs = Sequence[Sequence[int]]


Text = Annotated[str, Field(min_length=1)]
Input = Annotated[
    Annotated[Text, Tag(f"{TAG}text")]
    | Annotated[list[Text], Field(min_length=1, max_length=MOST_INPUTS), Tag(f"{TAG}texts")]
    | Annotated[Ids, Tag(f"{TAG}ids")]
    | Annotated[list[Ids], Field(min_length=1, max_length=MOST_INPUTS), Tag(f"{TAG}ids-list")],
    Discriminator(prompt_tag),
]


class EmbeddingRequest(Strict):
    """Texts, or their tokens. dimensions: only the first so many numbers of each vector, made to length 1 again."""

    model: str | None = Field(None, max_length=512)
    input: Input
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, lt=2**31)


@dataclass(eq=False)
class EmbeddingServing(Loaded):
    """A model for embeddings."""

    kind = "embedding"
    otherwise = "is for embeddings: it does not generate text. Ask it at /v1/embeddings."

    service: EmbeddingService

    @property
    def facts(self) -> dict[str, Any]:
        """How vectors are made."""
        return {"pooling": self.service.pooling, "dimensions": self.service.n_dims}

    @property
    def summary(self) -> str:
        """How much it takes at once, in a few words."""
        what = "dimensions" if self.service.normalizes else "scores"
        window = count(self.service.limits.max_seq_len, "token")
        return f"embeddings of {self.service.n_dims} {what} ({self.service.pooling}) · texts of up to {window}"


class _Reading:
    """Inputs that are being read; see `serving.Open`."""

    def __init__(self, future: Future[Vectors]) -> None:
        self.future = future

    def cancel(self) -> None:
        """Take out what was not read yet."""
        self.future.cancel()


async def answer(models: Models, asked: EmbeddingRequest) -> bytes:
    """The response's JSON. Raises ApiError, RequestError, EngineError."""
    serving = of_kind(await models.serving(asked.model), EmbeddingServing)
    serving.gate.check()
    inputs = await serving.aside(partial(_inputs, serving, asked))
    vectors = await _read(serving, inputs)
    return await serving.aside(partial(_body, serving, asked, inputs, vectors))


def _inputs(serving: EmbeddingServing, asked: EmbeddingRequest) -> Inputs:
    """The tokens of each input."""
    given = asked.input
    if asked.dimensions is not None:
        _check_dimensions(serving.service, asked.dimensions)
    if isinstance(given, str) or isinstance(given[0], int):
        return [_tokens(serving, given, "input")]
    return [_tokens(serving, one, f"input[{i}]") for i, one in enumerate(given)]


def _check_dimensions(service: EmbeddingService, wanted: int) -> None:
    if not service.normalizes:
        raise unsupported("dimensions", "is not supported: the model is a reranker, and what it gives are scores")
    if wanted > service.n_dims:
        raise invalid(f"'dimensions' is {wanted}, and the model's vectors have {service.n_dims}", "dimensions")


def _tokens(serving: EmbeddingServing, given: Any, at: str) -> Sequence[int]:
    """A text's tokens, or those that were sent, if the model can read so many."""
    size = serving.service.limits.max_seq_len
    tokens: Sequence[int] = serving.service.tokens(given) if isinstance(given, str) else given
    check_tokens(serving, tokens, at)
    if not tokens:
        raise invalid(f"'{at}' has no tokens", at)
    if len(tokens) <= size:
        return tokens
    raise ApiError(
        400,
        f"This model's maximum context length is {size} tokens. However, '{at}' has {len(tokens)} tokens. Shorten it.",
        param=at,
        code="context_length_exceeded",
        more={"n_prompt_tokens": len(tokens), "n_ctx": size},
    )


async def _read(serving: EmbeddingServing, inputs: Inputs) -> Vectors:
    """The vectors; who leaves takes what was not read out of the queue. Raises ApiError when the server stops."""
    serving.gate.enter(1)
    began, reading = time.perf_counter(), None
    try:
        reading = _Reading(serving.service.submit(inputs))
        serving.open_answers.add(reading)
        vectors = asyncio.wrap_future(reading.future)
        await asyncio.wait([vectors])
        if vectors.cancelled():
            raise not_ready("the server is stopping")
        return vectors.result()
    finally:
        if reading is not None:
            serving.open_answers.discard(reading)
            reading.cancel()
        serving.gate.leave(1, seconds=time.perf_counter() - began)


def _body(serving: EmbeddingServing, asked: EmbeddingRequest, inputs: Inputs, vectors: Vectors) -> bytes:
    if asked.dimensions is not None and asked.dimensions < serving.service.n_dims:
        vectors = normalized(vectors[:, : asked.dimensions])
    rows: list[Any] = [_base64(row) for row in vectors] if asked.encoding_format == "base64" else vectors.tolist()
    n_tokens = sum(map(len, inputs))
    found = {
        "object": "list",
        "data": [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)],
        "model": serving.name,
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    }
    return json.dumps(found, separators=(",", ":")).encode()


def _base64(row: Vectors) -> str:
    """Little-endian float32."""
    return base64.b64encode(np.ascontiguousarray(row, "<f4").tobytes()).decode()
