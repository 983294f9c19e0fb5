"""/v1/models, and loading and unloading by hand."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pydantic import Field

from pagedrun.server.errors import ApiError, invalid
from pagedrun.server.fields import Strict
from pagedrun.server.models import Models
from pagedrun.server.served import Served
from pagedrun.server.serving import Kind


class ModelRequest(Strict):
    """A model by its name; none: the first."""

    model: str | None = Field(None, max_length=512)


async def listed(models: Models) -> dict[str, Any]:
    """All names that requests may use. `pagedrun` says what a model is for, whether it is loaded, what memory it has or
    may take, and when it is unloaded if nobody asks for it.
    """
    found = [await _model(models, served, name) for served in list(models.all) for name in served.settings.names]
    if models.installed is not None:
        kinds = await asyncio.get_running_loop().run_in_executor(models.prepare, models.installed.kinds)
        known = {one["id"] for one in found}
        found += [_entry(models, n, {}, {"kind": kind, **_NEVER}) for n, kind in kinds.items() if n not in known]
    return {"object": "list", "data": found}


async def one(models: Models, name: str) -> dict[str, Any]:
    """One of them. Raises ApiError."""
    return await _model(models, await models.find(name), name)


async def load(models: Models, name: str | None) -> dict[str, Any]:
    """Load a model, unless it is, and wait until it is there. Raises ApiError."""
    served = await models.find(name)
    await models.serving(served.name)
    return await _model(models, served, served.name)


async def unload(models: Models, name: str | None) -> dict[str, Any]:
    """Save a model's conversations and give its memory back. Raises ApiError for one that is in use.

    No name will do where there is one model.
    """
    if name is None and len(models.all) > 1:
        raise invalid("'model' is missing: several are served", "model")
    served = await models.find(name)
    if served.serving is not None and not await models.mover.unload(served, "asked") and served.serving is not None:
        why = "answers are under way" if served.serving.busy else "it cannot be loaded again"
        raise ApiError(409, f"'{served.name}' stays loaded: {why}", param="model", code="model_in_use")
    return await _model(models, served, served.name)


async def _kind(models: Models, served: Served) -> Kind | None:
    """What it is for; reads the header of a file."""
    if served.serving is not None:
        return served.serving.kind
    source = served.source
    if source is None:
        return None
    return await asyncio.get_running_loop().run_in_executor(models.prepare, lambda: source.kind)


async def _model(models: Models, served: Served, name: str) -> dict[str, Any]:
    kind = await _kind(models, served)
    serving = served.serving
    state: dict[str, Any] = {"kind": kind, "state": served.state, "loaded": serving is not None, "since": served.since}
    if serving is None:
        about = served.source.about if served.source is not None else {}
        return _entry(models, name, about, {**state, **_NOTHING, "waiting": served.n_waiting})
    stays_s = models.mover.stays_s(served)
    info, limits = serving.service.model, serving.service.limits
    meta = {"n_ctx_train": info.n_ctx_train, "n_params": info.n_params, "n_vocab": info.n_vocab}
    state |= {
        "memory": asdict(serving.service.holds),
        "running": serving.gate.running,
        "waiting": serving.gate.waiting + served.n_waiting,
        "unload_at": None if serving.busy or math.isinf(stays_s) else served.used_at + stays_s,
    }
    return _entry(models, name, {**meta, "size": info.size_bytes}, state, limits.max_seq_len)


_NOTHING = {"memory": None, "running": 0, "waiting": 0, "unload_at": None}
_NEVER = {"state": "unloaded", "loaded": False, "since": None, **_NOTHING}


def _entry(
    models: Models, name: str, meta: Mapping[str, Any], state: Mapping[str, Any], length: int | None = None
) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(models.started),
        "owned_by": "pagedrun",
        "max_model_len": length,
        "meta": dict(meta),
        "pagedrun": dict(state),
    }
