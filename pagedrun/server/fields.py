"""Fields that requests share, and how what is wrong with them is said.

A null is a field that was not given. Fields that nobody knows are refused by name, because a silent ignore would give
another answer than was asked for; those of `IGNORED` change no answer.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from pagedrun.sampling import SamplingParams
from pagedrun.server.errors import ApiError, invalid, unsupported

#: Fields of OpenAI's API, and of clients, that change no answer here.
IGNORED = frozenset(
    {
        "cache_prompt", "metadata", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "safety_identifier", "service_tier", "store", "user",
    }
)  # fmt: skip

#: Other names for the same: vLLM's, Ollama's and llama-server's.
_ALIASES = {"repetition_penalty": "repeat_penalty", "typical": "typical_p"}

_SEEDS = 2**32 - 1  # llama.cpp takes this one for "draw one"
_INT64 = 2**63

M = TypeVar("M", bound=BaseModel)

#: A tag of a union: pydantic shows it in an error's path, and `_param` takes it out again.
TAG = "~"


def list_tag(value: Any) -> str:
    """Whether there are several, or one: a text, mostly."""
    return f"{TAG}list" if isinstance(value, list) else f"{TAG}one"


def choice_tag(value: Any) -> str:
    """Which form a tool_choice has: a word, the name of a tool, or a list of those that are allowed."""
    if not isinstance(value, dict):
        return f"{TAG}word"
    return f"{TAG}allowed" if value.get("type") == "allowed_tools" else f"{TAG}named"


class Strict(BaseModel):
    """No conversions: "1" is no number. Whole numbers count as numbers."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


Stop = Annotated[
    Annotated[str, Tag(f"{TAG}one")] | Annotated[list[str], Field(max_length=64), Tag(f"{TAG}list")],
    Discriminator(list_tag),
]


#: Who has the lower one is served first, as in vLLM; 0 where a request has none. Among equals who came first.
Priority = Annotated[int, Field(ge=-(2**31), lt=2**31)]


class StreamOptions(Strict):
    """What a stream has beside the answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class SamplingFields(Strict):
    """How tokens are chosen; names are OpenAI's, and llama.cpp's for the rest."""

    temperature: float | None = Field(None, ge=0, le=1e6)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1)
    min_p: float | None = Field(None, ge=0, le=1)
    typical_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repeat_penalty: float | None = Field(None, ge=1e-3, le=1e3)
    repeat_last_n: int | None = Field(None, ge=0, le=2**20)
    dry_multiplier: float | None = Field(None, ge=0, le=1e6)
    dry_base: float | None = Field(None, ge=0, le=1e6)
    dry_allowed_length: int | None = Field(None, ge=0, le=2**31 - 1)
    dry_penalty_last_n: int | None = Field(None, ge=0, le=2**20)
    dry_sequence_breakers: Annotated[list[str], Field(max_length=64)] | None = None
    xtc_probability: float | None = Field(None, ge=0, le=1)
    xtc_threshold: float | None = Field(None, ge=0, le=1)
    mirostat: int | None = Field(None, ge=0, le=2)
    mirostat_tau: float | None = Field(None, ge=0, le=1e6)
    mirostat_eta: float | None = Field(None, ge=0, le=1e6)
    seed: int | None = Field(None, ge=-_INT64, lt=_INT64)
    logit_bias: Annotated[dict[str, float], Field(max_length=1024)] | None = None
    ignore_eos: bool | None = None

    def params(self) -> SamplingParams:
        """As the engine takes them. Raises ApiError, ParameterError."""
        values = {name: getattr(self, name) for name in SamplingFields.model_fields}
        breakers, top_k = values["dry_sequence_breakers"], values["top_k"]
        return SamplingParams(
            **values
            | {
                "dry_sequence_breakers": tuple(breakers) if breakers else None,
                "top_k": 0 if top_k == -1 else top_k,  # vLLM's word for "all"
                "seed": secrets.randbelow(_SEEDS) if self.seed is None else self.seed % _SEEDS,
                "logit_bias": _bias(self.logit_bias or {}),
                "ignore_eos": bool(self.ignore_eos),
            }
        )


class Shared(SamplingFields):
    """What every request for text may have."""

    model: str | None = Field(None, max_length=512)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=128)
    stop: Stop | None = None
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    grammar: str | None = Field(None, min_length=1, max_length=1 << 20)
    priority: Priority | None = None

    def stops(self) -> tuple[str, ...]:
        """Stop strings. Raises ApiError for an empty one."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if "" in stops:
            raise invalid("'stop' has an empty string, which is everywhere", "stop")
        return tuple(stops)

    def streams(self) -> bool:
        """Whether the answer comes in pieces. Raises ApiError where only a stream could have what is asked for."""
        if self.stream_options is not None and not self.stream:
            raise invalid("'stream_options' is only for 'stream': true", "stream_options")
        return bool(self.stream)

    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)


def validated(model: type[M], data: Mapping[str, Any], refused: Mapping[str, str] | None = None) -> M:
    """The request. refused: fields that are known and not honoured, and what to do instead. Raises ApiError."""
    given: dict[str, Any] = {}
    for name, value in data.items():
        if value is None or (name in IGNORED and name not in model.model_fields):
            continue
        if refused and name in refused:
            raise unsupported(name, refused[name])
        known = _ALIASES.get(name, name)
        if known not in model.model_fields:
            raise ApiError(400, f"unknown field '{_short(name)}'", param=_short(name), code="unknown_parameter")
        if known in given:
            raise invalid(f"'{_short(name)}' is another name of '{known}', which is there as well", name)
        given[known] = value
    try:
        return model.model_validate(given)
    except ValidationError as e:
        raise _said(e) from None


def _said(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = _param(first["loc"])
    if first["type"] == "missing":
        return invalid(f"missing '{param}'", param, "missing_required_parameter")
    if first["type"] == "extra_forbidden":
        return invalid(f"unknown field '{param}'", param, "unknown_parameter")
    if first["type"] == "string_too_short":
        return invalid(f"'{param}' is an empty text: write something, or leave it out", param)
    kind = "invalid_type" if first["type"].endswith("_type") else "invalid_value"
    return invalid(f"'{param}': {first['msg'][:1].lower()}{first['msg'][1:]}", param, kind)


def _param(path: tuple[int | str, ...]) -> str:
    """messages[0].content"""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif not part.startswith(TAG):
            text += f".{_short(part)}" if text else _short(part)
    return text


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}..."


def _bias(given: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    pairs = []
    for token, bias in given.items():
        if not (token.isascii() and token.isdecimal() and len(token) < 10):
            raise invalid(f"'logit_bias': {_short(token)!r} is no token id", "logit_bias")
        # 100 is OpenAI's word for "this one only", and -100 for "never".
        pairs.append((int(token), float("-inf") if bias <= -100 else bias))
    return tuple(pairs)


def prompt_tag(value: Any) -> str:
    """Which of its forms a prompt, or what is to be embedded, has: a text, texts, tokens, or lists of tokens."""
    if not isinstance(value, list):
        return f"{TAG}text"
    first = value[0] if value else ""
    if isinstance(first, list):
        return f"{TAG}ids-list"
    return f"{TAG}texts" if isinstance(first, str) else f"{TAG}ids"
