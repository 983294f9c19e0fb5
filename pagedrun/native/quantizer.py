"""llama.cpp's quantiser, in a process of its own: an abort in it, or a Ctrl-C, must not take pagedrun with it.

    stdin    {"path": [...], "task": {...}}     sys.path of the parent, and a `Task`
    stdout   {"tensor": 12, "of": 272, "name": "blk.0.attn_q.weight"}       one line for each tensor begun
             {"plan": {...}}   after a dry run: see `Plan`
             {"done": true}    after a real one
             {"error": "failed to quantize: ...", "log": "..."}

The bytes that come out are llama-quantize's: the same function, with the same parameters. `max_buffer` bounds the
memory that one tensor takes, and changes no byte.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagedrun.errors import PagedrunError
from pagedrun.native.layout import Layout, type_number

if TYPE_CHECKING:
    from pagedrun.native.library import Library

#: What the parent gives to `python -c`.
PROGRAM = (
    "import json, sys; given = json.load(sys.stdin); sys.path[:] = given['path']; "
    "from pagedrun.native.quantizer import main; main(given['task'])"
)

_TEXT_BYTES = 127  # llama_model_kv_override.val_str, less the zero behind it
_PR_SET_PDEATHSIG = 1
_BEGUN = re.compile(r"\[ *(\d+)/ *(\d+)\] (.+?) +- \[")
_PLANNED = re.compile(r"\[ *\d+/ *\d+\] (.+?) +- \[[^\]]*\], type = *(\w+), size = [^\n(]*(?:\((\w+)\))?")
_NEEDS_IMATRIX = "will require an imatrix"
_FALLBACKS = re.compile(r"(\d+) of \d+ tensor\(s\) required fallback")


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to quantise, and how.

    parts: the source's files, in order. ftype: llama_ftype. imatrix_name: what the result says of its imatrix.
    output_type: of output.weight, "" as llama.cpp chooses, "source" as it is. tensor_types: (regex, type) pairs.
    max_buffer: bytes of rows in memory at once.
    """

    parts: tuple[str, ...]
    target: str
    ftype: int
    threads: int
    requantize: bool = False
    output_type: str = ""
    embedding_type: str = ""
    tensor_types: tuple[tuple[str, str], ...] = ()
    imatrix: str = ""
    imatrix_name: str = ""
    max_buffer: int
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a dry run foretells: `before` and `after` are types by tensor, `sizes` bytes by tensor in the result."""

    before: Mapping[str, str]
    after: Mapping[str, str]
    sizes: Mapping[str, int]
    file_size: int
    needs_imatrix: bool
    fallbacks: int


def main(values: Mapping[str, Any]) -> None:
    """The child: one task, events on stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # What a library prints must not get between the events.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(**event: Any) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    given = {**values, "parts": tuple(values["parts"]), "tensor_types": tuple(map(tuple, values["tensor_types"]))}
    try:
        _Quantizer(Task(**given), send).run()
    except PagedrunError as e:
        send(error=e.message, log="")


class _Quantizer:
    """One task; keeps alive what llama.cpp gets pointers to."""

    def __init__(self, task: Task, send: Callable[..., None]) -> None:
        from pagedrun.native.library import load

        self._task = task
        self._send = send
        self._library = load()
        self._llama = self._library.llama
        self._log: list[str] = []
        self._alive: list[Any] = []

    def run(self) -> None:
        """Do it, and send what came of it."""
        params = self._params()
        callback = self._llama.llama_log_callback(self._on_log)
        self._llama.llama_log_set(callback, None)
        source, target = (os.fsencode(path) for path in (self._task.parts[0], self._task.target))
        status = self._llama.llama_model_quantize(source, target, ctypes.byref(params))
        log = "".join(self._log)
        if status != 0:
            reasons = re.findall(r"failed to quantize: (.+)", log)
            self._send(error=reasons[-1] if reasons else "llama.cpp gives no reason", log=log[-4000:])
        elif self._task.dry_run:
            self._send(plan=asdict(_plan(self._library, self._task, params, log)))
        else:
            self._send(done=True)

    def _on_log(self, _level: int, text: bytes | None, _user_data: object) -> None:
        line = (text or b"").decode("utf-8", "replace")
        self._log.append(line)
        if not self._task.dry_run and (begun := _BEGUN.match(line)):
            self._send(tensor=int(begun[1]), of=int(begun[2]), name=begun[3])

    def _params(self) -> Any:
        task = self._task
        params = self._llama.llama_model_quantize_default_params()
        params.nthread = task.threads
        params.ftype = task.ftype
        params.allow_requantize = task.requantize
        params.dry_run = task.dry_run
        params.max_buf_size = task.max_buffer
        if task.output_type == "source":
            params.quantize_output_tensor = False
        elif task.output_type:
            params.output_tensor_type = type_number(task.output_type)
        if task.embedding_type:
            params.token_embedding_type = type_number(task.embedding_type)
        if task.tensor_types:
            rows = [(pattern.encode(), type_number(name)) for pattern, name in task.tensor_types]
            params.tt_overrides = self._array(self._llama.llama_model_tensor_override, rows)
        if task.imatrix:
            self._use_imatrix(params)
        return params

    def _use_imatrix(self, params: Any) -> None:
        from pagedrun.native.imatrix import load_imatrix

        matrix = load_imatrix(Path(self._task.imatrix))
        kept = {name.encode(): values for name, values in matrix.values.items()}
        float_pointer = ctypes.POINTER(ctypes.c_float)
        rows = [(name, values.ctypes.data_as(float_pointer), values.size) for name, values in kept.items()]
        params.imatrix = self._array(self._llama.llama_model_imatrix_data, rows)
        # In the order in which llama-quantize writes them.
        notes: list[tuple[str, str | int]] = [("file", self._task.imatrix_name)]
        notes += [("dataset", matrix.dataset)] if matrix.dataset else []
        notes += [("entries_count", len(matrix.values))]
        notes += [("chunks_count", matrix.chunks)] if matrix.chunks > 0 else []
        overrides = [self._override(f"quantize.imatrix.{key}", value) for key, value in notes]
        params.kv_overrides = self._array(self._llama.llama_model_kv_override, overrides)
        self._alive.append(kept)

    def _override(self, key: str, value: str | int) -> tuple[int, bytes, Any]:
        union = self._llama.llama_model_kv_override_value()
        if isinstance(value, int):
            union.val_i64 = value
            return self._llama.LLAMA_KV_OVERRIDE_TYPE_INT, key.encode(), union
        union.val_str = os.fsencode(value)[:_TEXT_BYTES]
        return self._llama.LLAMA_KV_OVERRIDE_TYPE_STR, key.encode(), union

    def _array(self, kind: Any, rows: list[Any]) -> Any:
        """A C array of `rows`, with an empty one behind them, which ends it."""
        array = (kind * (len(rows) + 1))(*(kind(*row) for row in rows))
        self._alive.append(array)
        return ctypes.cast(array, ctypes.POINTER(kind))


def _plan(library: Library, task: Task, params: Any, log: str) -> Plan:
    """What the dry run's log says, and the size of the file that follows from it."""
    before, after = {}, {}
    for name, old, new in _PLANNED.findall(log):
        before[name], after[name] = old.upper(), (new or old).upper()
    sizes, file_size = Layout(library.common, task.parts, params.kv_overrides).measure(after)
    fallbacks = _FALLBACKS.search(log)
    return Plan(
        before=before,
        after=after,
        sizes=sizes,
        file_size=file_size,
        needs_imatrix=_NEEDS_IMATRIX in log,
        fallbacks=int(fallbacks[1]) if fallbacks else 0,
    )
