"""What is no answer: tokens and templates as llama-server has them, health, metrics, and a look inside."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from pydantic import Field

from pagedrun import __version__
from pagedrun.server.asking import render
from pagedrun.server.chat import ask_of
from pagedrun.server.chat_fields import ChatRequest
from pagedrun.server.errors import ApiError, not_ready
from pagedrun.server.fields import Strict
from pagedrun.server.models import Models
from pagedrun.server.serving import Loaded, Serving, of_kind
from pagedrun.server.tokens import check_tokens, text_of

_STEP_S = 0.5  # how long who asks for figures waits for a step's end


class TokenizeRequest(Strict):
    """Text to cut into tokens. add_special: with the model's BOS and EOS; parse_special: <|tags|> are tokens."""

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False
    model: str | None = None


class DetokenizeRequest(Strict):
    """Tokens to put together."""

    tokens: list[int] = Field(max_length=1 << 22)
    model: str | None = None


async def tokenize(models: Models, asked: TokenizeRequest) -> dict[str, Any]:
    """{"tokens": [...]}, with pieces {"id", "piece"} for each; a piece that is no text is a list of bytes."""
    serving = await models.serving(asked.model)
    vocab = serving.service.vocab

    def work() -> list[int]:
        return vocab.tokenize(asked.content, add_special=asked.add_special, parse_special=asked.parse_special)

    tokens = await serving.aside(work)
    if asked.with_pieces:
        return {"tokens": [{"id": t, "piece": _piece(vocab.piece(t, special=True))} for t in tokens]}
    return {"tokens": tokens}


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def detokenize(models: Models, asked: DetokenizeRequest) -> dict[str, Any]:
    """{"content": text}"""
    serving = await models.serving(asked.model)
    check_tokens(serving, asked.tokens, "tokens")
    return {"content": await serving.aside(lambda: text_of(serving, asked.tokens))}


async def apply_template(models: Models, asked: ChatRequest) -> dict[str, Any]:
    """{"prompt": text} of a chat, with the fields of /v1/chat/completions."""
    serving = of_kind(await models.serving(asked.model), Serving)
    rendered = await serving.aside(lambda: render(serving, ask_of(asked)))
    return {"prompt": rendered.prompt}


def health(models: Models) -> dict[str, Any]:
    """The process answers."""
    return {"status": "ok"}


def ready(models: Models) -> dict[str, Any]:
    """It would take a request. Raises ApiError when it stops, or an engine has."""
    if models.stopping:
        raise not_ready("the server is stopping")
    if not all(serving.service.alive for serving in models.loaded):
        raise not_ready("the engine has stopped")
    found = models.readings()
    return {"status": "ok", "running": sum(r.running for r in found), "waiting": sum(r.waiting for r in found)}


def properties(serving: Loaded) -> dict[str, Any]:
    """The model, the limits, the settings in force."""
    service = serving.service
    info = asdict(service.model)
    return {
        "version": __version__,
        "model": {**info, "path": service.model.path.name, "sampling": dict(service.model.sampling)},
        "names": list(serving.settings.names),
        "limits": asdict(service.limits),
        "settings": asdict(serving.config),
        "max_queue": serving.settings.max_queue,
        **serving.facts,
        "started": serving.started,
        "uptime_s": time.time() - serving.started,
    }


def plan(serving: Loaded) -> dict[str, Any]:
    """What goes where; without a GPU, what main memory is taken for. Raises ApiError where llama.cpp decided."""
    found = serving.service.plan
    if found is None and not serving.service.model.on_gpu:
        return _without_gpu(serving)
    if found is None:
        raise ApiError(404, "there is no plan: llama.cpp placed the model by itself", code="no_plan")
    totals = {memory: found.total(memory) for memory in ("vram", "ram", "disk")}
    return {**asdict(found), "fits": found.fits, "totals": totals}


def _without_gpu(serving: Loaded) -> dict[str, Any]:
    """Bytes of main memory. What the KV cache has is not known before the first answer, nor where it has no pages."""
    model, kv = serving.service.model, serving.service.stats.kv
    found: dict[str, Any] = {"device": model.device, "weights_bytes": model.size_bytes, "kv_cache": None}
    if kv is not None:
        found["kv_cache"] = {
            "buffer_bytes": kv.buffer_bytes,
            "pages_bytes": kv.device.n_bytes,
            "pages_limit_bytes": kv.device.limit_bytes,
            "swap_space_bytes": kv.host.n_bytes,
            "swap_space_limit_bytes": kv.host.limit_bytes,
        }
    return found


async def memory(serving: Loaded) -> dict[str, Any]:
    """Pages by tier, as they are; null without pages."""
    loop, counted = asyncio.get_running_loop(), asyncio.Event()

    def done() -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(counted.set)

    if isinstance(serving, Serving) and serving.service.alive:
        serving.service.measure(done)
        with suppress(asyncio.TimeoutError):  # a long step: what was counted last
            await asyncio.wait_for(counted.wait(), _STEP_S)
    stats = serving.service.stats
    return {"kv_cache": None if stats.kv is None else {**asdict(stats.kv), "evictions": stats.kv.evictions}}


def statistics(serving: Loaded) -> dict[str, Any]:
    """Totals of the engine, and how much is being answered."""
    stats = serving.service.stats
    return {
        "running": serving.gate.running,
        "waiting": serving.gate.waiting,
        "steps": stats.steps,
        "tokens_computed": stats.tokens_computed,
        "tokens_sampled": stats.tokens_sampled,
        "step_s": stats.step_s,
        "native_s": stats.native_s,
        "overhead_s": stats.overhead_s,
    }
