"""Requests and events as JSON, between `chat` or `complete` and a server. Both have to be of the same VERSION.

request   the fields of `GenerationRequest`
events    one object a line: {"text", ...}, and at the end {"finished", ...} or {"error", ...}
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pagedrun import errors
from pagedrun.errors import ContextLengthError, EngineError, PagedrunError
from pagedrun.kv.stats import KvStats
from pagedrun.request import Finished, FinishReason, GenerationRequest, TextDelta, Timings, TokenLogprob, Usage

VERSION = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an answer, with what the server knows then. kept: the fields of `KeeperStats`."""

    finished: Finished
    kv: KvStats | None = None
    kept: Mapping[str, Any] | None = None


def request_to_json(request: GenerationRequest) -> dict[str, Any]:
    """A request, as JSON has it: no infinity, but its name."""
    found = asdict(request)
    found["sampling"]["logit_bias"] = [[t, b if math.isfinite(b) else str(b)] for t, b in request.sampling.logit_bias]
    return found


def delta_to_json(delta: TextDelta) -> dict[str, Any]:
    """Some more of an answer."""
    found: dict[str, Any] = {"text": delta.text, "tokens": delta.tokens}
    if delta.logprobs:
        found["logprobs"] = [[p.token, _number(p.logprob), _pairs(p.top)] for p in delta.logprobs]
    return found


def ended_to_json(ended: Ended) -> dict[str, Any]:
    """The end of an answer."""
    finished = ended.finished
    return {
        "finished": finished.reason.value,
        "stop": finished.stop,
        "usage": asdict(finished.usage),
        "timings": asdict(finished.timings),
        "error": None if finished.error is None else error_to_json(finished.error),
        "kv": None if ended.kv is None else asdict(ended.kv),
        "kept": ended.kept,
    }


def error_to_json(error: PagedrunError) -> dict[str, Any]:
    """An error, with its kind."""
    kind = next(kind for kind in type(error).__mro__ if kind.__name__ in _kinds())
    found: dict[str, Any] = {"kind": kind.__name__, "message": error.message, "hint": error.hint}
    if isinstance(error, ContextLengthError):
        found |= {"prompt_tokens": error.prompt_tokens, "max_seq_len": error.max_seq_len}
    return found


def event_from_json(data: Mapping[str, Any]) -> TextDelta | Ended:
    """What a line says. Raises the error that it tells of; ValueError, KeyError or TypeError for what is no event."""
    if "text" in data:
        logprobs = tuple(TokenLogprob(t, _infinite(p), _tuples(top)) for t, p, top in data.get("logprobs", ()))
        return TextDelta(str(data["text"]), tuple(data["tokens"]), logprobs)
    if "finished" not in data:
        raise error_from_json(data["error"])
    error = None if data["error"] is None else error_from_json(data["error"])
    finished = Finished(
        FinishReason(data["finished"]), Usage(**data["usage"]), Timings(**data["timings"]), error, data["stop"]
    )
    return Ended(finished, None if data["kv"] is None else restored(KvStats, data["kv"]), data["kept"])


def error_from_json(data: Mapping[str, Any]) -> PagedrunError:
    """The error that was told. Raises KeyError or TypeError for what is none."""
    kind = _kinds().get(data["kind"], EngineError)
    if kind is ContextLengthError:
        return ContextLengthError(data["prompt_tokens"], data["max_seq_len"], hint=data["hint"])
    return kind(data["message"], hint=data["hint"])


def restored(kind: type[T], data: Mapping[str, Any]) -> T:
    """A dataclass from what `asdict` made of it. Raises KeyError or TypeError for what is none."""
    hints = get_type_hints(kind)
    values = {f.name: _restored(hints[f.name], data[f.name]) for f in fields(kind)}  # type: ignore[arg-type]
    return kind(**values)


def _restored(hint: Any, value: Any) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        return restored(hint, value)
    return Path(value) if hint is Path else value


@cache
def _kinds() -> Mapping[str, type[PagedrunError]]:
    return {name: kind for name, kind in vars(errors).items() if _is_kind(kind)}


def _is_kind(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, PagedrunError)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _infinite(value: float | None) -> float:
    return -math.inf if value is None else value


def _pairs(top: Sequence[tuple[int, float]]) -> list[tuple[int, float | None]]:
    return [(token, _number(p)) for token, p in top]


def _tuples(top: Sequence[Sequence[Any]]) -> tuple[tuple[int, float], ...]:
    return tuple((token, _infinite(p)) for token, p in top)
