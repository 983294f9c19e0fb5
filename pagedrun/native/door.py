"""The C door that `patches/0002-common-door.patch` adds to libllama-common, with Python values in and out.

    Door ── open_templates ──> TemplateHandle ── reply ──> ReplyHandle
         ── sampler ─────────> SamplerHandle
         ── fit ─────────────> FitHandle
         ── memory
         ── schema_to_grammar

JSON crosses the door as text. A handle frees itself with `close`, or when it is collected; it is not locked, so
one thread at a time may use it.
"""

from __future__ import annotations

import ctypes
import json
import types
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_bool, c_char_p, c_int32, c_size_t, c_uint32, c_void_p
from typing import Any

from pagedrun.errors import EngineError, GrammarError, PagedrunError, ParameterError, TemplateError

_ERRORS: dict[str, type[PagedrunError]] = {
    "template": TemplateError,
    "no_template": TemplateError,
    "parse": TemplateError,
    "grammar": GrammarError,
    "schema": GrammarError,
    "parameter": ParameterError,
    "engine": EngineError,
}
_HINTS = {
    "grammar": "GBNF is described in llama.cpp's grammars/README.md",
    "schema": "correct the JSON schema; json-schema.org describes the keywords",
    "no_template": "give one with --chat-template FILE, or use --raw",
    "template": "another template can be given with --chat-template FILE",
}

# name -> (result, arguments). Strings that are given back are c_void_p: they must reach pagedrun_free.
_ERROR_OUT = POINTER(c_void_p)
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "free": (None, (c_void_p,)),
    "chat_facts": (c_void_p, (c_void_p,)),
    "chat_init": (c_void_p, (c_void_p, c_char_p, c_char_p, c_char_p, _ERROR_OUT)),
    "chat_info": (c_void_p, (c_void_p,)),
    "chat_apply": (c_void_p, (c_void_p, c_char_p)),
    "chat_free": (None, (c_void_p,)),
    "reply_init": (c_void_p, (c_char_p, _ERROR_OUT)),
    "reply_parse": (c_void_p, (c_void_p, c_char_p, c_size_t, c_bool)),
    "reply_free": (None, (c_void_p,)),
    "schema_to_grammar": (c_void_p, (c_char_p,)),
    "sampler_init": (c_void_p, (c_void_p, c_char_p, _ERROR_OUT)),
    "sampler_accept": (c_int32, (c_void_p, POINTER(c_int32), c_size_t)),
    "sampler_sample": (c_int32, (c_void_p, c_void_p, c_int32)),
    "sampler_error": (c_char_p, (c_void_p,)),
    "sampler_seed": (c_uint32, (c_void_p,)),
    "sampler_free": (None, (c_void_p,)),
    "fit_init": (c_void_p, (c_char_p, c_void_p, c_void_p, c_size_t, c_uint32, _ERROR_OUT)),
    "fit_free": (None, (c_void_p,)),
    "memory": (c_void_p, (c_char_p, c_void_p, c_void_p)),
}


class Door:
    """The door of one loaded libllama-common. Cheap; any number may stand over the same library."""

    def __init__(self, common: ctypes.CDLL) -> None:
        self.c = types.SimpleNamespace()
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(common, f"pagedrun_{name}")
            function.restype = result
            function.argtypes = arguments
            setattr(self.c, name, function)

    def open_templates(self, model: Any, source: str | None = None, *, bos: str = "", eos: str = "") -> TemplateHandle:
        """The chat template of a model (a llama_model pointer), or `source` in its place.

        Without a model, `bos` and `eos` are the texts of those tokens. Raises TemplateError, which carries the
        line, when there is no template or when it does not parse.
        """
        error = c_void_p()
        handle = self.c.chat_init(model, _bytes(source), _bytes(bos), _bytes(eos), ctypes.byref(error))
        return TemplateHandle(self, self.made(handle, error))

    def template_facts(self, model: Any) -> dict[str, Any]:
        """`{source, bos, eos, add_bos}` of a model; the source is empty when it has no template."""
        facts: dict[str, Any] = self.answer(self.c.chat_facts(model))
        return facts

    def schema_to_grammar(self, schema: str) -> str:
        """A GBNF grammar for a JSON schema. Raises GrammarError."""
        return str(self.answer(self.c.schema_to_grammar(_bytes(schema)))["grammar"])

    def sampler(self, model: Any, params: Mapping[str, Any]) -> SamplerHandle:
        """A sampler over `params` (see patches/README.md). Raises GrammarError, ParameterError."""
        error = c_void_p()
        handle = self.c.sampler_init(model, _json(params), ctypes.byref(error))
        return SamplerHandle(self, self.made(handle, error))

    def fit(self, path: str, mparams: Any, cparams: Any, *, margin: int, n_ctx_min: int) -> FitHandle:
        """Fit `mparams` and `cparams` (ctypes structures, changed in place) into free device memory.

        margin: bytes to leave free on each device. n_ctx_min: tokens below which the context is not shortened.
        Keep the handle until the model is loaded: the structures point into it. Never call it from two threads.
        """
        report = c_void_p()
        path_bytes = path.encode()
        handle = self.c.fit_init(
            path_bytes, ctypes.byref(mparams), ctypes.byref(cparams), margin, n_ctx_min, ctypes.byref(report)
        )
        fit = FitHandle(self, handle)
        fit.report = self.answer(report.value)
        return fit

    def memory(self, path: str, mparams: Any, cparams: Any) -> list[dict[str, Any]]:
        """What the model and a context (ctypes structures) would take, from a load that allocates nothing.

        One `{name, free, total, model, context, compute}` for each device, in bytes; main memory is the last. Takes
        0.2 s or more, most of it for the vocabulary. Raises EngineError. Never call it from two threads.
        """
        answer = self.c.memory(path.encode(), ctypes.byref(mparams), ctypes.byref(cparams))
        devices: list[dict[str, Any]] = self.answer(answer)["devices"]
        return devices

    def made(self, handle: int | None, error: c_void_p) -> int:
        """The new handle. Raises the error that was answered in its place."""
        if handle:
            return handle
        self.answer(error.value)
        raise EngineError("out of memory")

    def answer(self, pointer: int | None) -> Any:
        """The JSON at `pointer`, which is freed. Raises the error it stands for."""
        if not pointer:
            raise EngineError("out of memory")
        try:
            answer = json.loads(ctypes.string_at(pointer))
        finally:
            self.c.free(pointer)
        if isinstance(answer, dict) and "error" in answer:
            kind, message = answer["error"]["type"], answer["error"]["message"]
            raise _ERRORS[kind](message, hint=_HINTS.get(kind, ""))
        return answer


class _Handle:
    """Something the library made, and the function that frees it."""

    _free_name = ""

    def __init__(self, door: Door, pointer: int | None) -> None:
        self._door = door
        self._pointer = pointer

    @property
    def pointer(self) -> int:
        """The C handle. Raises EngineError after `close`: the library would crash."""
        if self._pointer is None:
            raise EngineError(f"this {type(self).__name__} is closed")
        return self._pointer

    def close(self) -> None:
        """Free it. A second call does nothing."""
        pointer, self._pointer = self._pointer, None
        if pointer:
            getattr(self._door.c, self._free_name)(pointer)

    def __del__(self) -> None:
        self.close()


class TemplateHandle(_Handle):
    """A parsed chat template."""

    _free_name = "chat_free"

    def info(self) -> dict[str, Any]:
        """`{source, caps, supports_thinking}`. Raises TemplateError when the template fails on any chat."""
        answer: dict[str, Any] = self._door.answer(self._door.c.chat_info(self.pointer))
        return answer

    def apply(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Render a chat; inputs and answer are listed in patches/README.md. Raises TemplateError."""
        answer: dict[str, Any] = self._door.answer(self._door.c.chat_apply(self.pointer, _json(inputs)))
        return answer

    def reply(self, params: Mapping[str, Any]) -> ReplyHandle:
        """The parser for replies to what `apply` answered."""
        error = c_void_p()
        handle = self._door.c.reply_init(_json(params), ctypes.byref(error))
        return ReplyHandle(self._door, self._door.made(handle, error))


class ReplyHandle(_Handle):
    """A parser of one template's replies. Holds no state between calls."""

    _free_name = "reply_free"

    def parse(self, text: str, *, partial: bool) -> dict[str, Any]:
        """`{content, reasoning, tool_calls: [{id, name, arguments}]}`. Raises TemplateError when it does not match."""
        data = text.encode("utf-8", "replace")
        answer: dict[str, Any] = self._door.answer(self._door.c.reply_parse(self.pointer, data, len(data), partial))
        return answer


class SamplerHandle(_Handle):
    """llama.cpp's common_sampler: the whole sampler chain with grammar and reasoning budget."""

    _free_name = "sampler_free"

    def accept(self, tokens: Sequence[int]) -> None:
        """Show it tokens of the prompt. Raises EngineError."""
        if self._door.c.sampler_accept(self.pointer, (c_int32 * len(tokens))(*tokens), len(tokens)) < 0:
            raise EngineError(self.error)

    def sample(self, context: Any, index: int) -> int:
        """Choose and accept a token from output `index` of the last batch; -1 when that failed, see `error`."""
        token: int = self._door.c.sampler_sample(self.pointer, context, index)
        return token

    @property
    def error(self) -> str:
        """Why `sample` answered -1."""
        message: bytes = self._door.c.sampler_error(self.pointer)
        return message.decode("utf-8", "replace")

    @property
    def seed(self) -> int:
        """The seed in use, also when none was asked for."""
        seed: int = self._door.c.sampler_seed(self.pointer)
        return seed


class FitHandle(_Handle):
    """Owns the arrays that fitted model parameters point to.

    report: `{status, n_gpu_layers, n_ctx, n_overrides}`; status 0 fits, 1 does not fit, 2 the file cannot be used.
    """

    _free_name = "fit_free"
    report: Mapping[str, Any]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "replace")


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False).encode()
