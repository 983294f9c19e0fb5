"""One quantisation: foretold, checked, written aside, checked again, renamed.

FOLDER/.NAME.gguf.part    being written, and locked; what a killed run left is overwritten by the next
FOLDER/NAME.gguf          gets this name only when it is what was foretold, to the byte
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pagedrun.errors import DiskFullError, ModelError, ModelFileError, UsageError
from pagedrun.gguf_file.reader import read_header
from pagedrun.native.quantizer import Plan, Task
from pagedrun.quantize import child, types
from pagedrun.quantize.source import GgufSource
from pagedrun.runtime import space
from pagedrun.units import size

#: Bytes of a tensor's rows in memory at once, beside the source, which is mapped. llama.cpp's own bound is 8 GiB.
MAX_BUFFER = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to quantise, in the names of `types`.

    keep_output: type of output.weight, "source" to leave it; embedding_type: of the token embeddings; "" for either is
    llama.cpp's choice. tensor_types: (regular expression, type), the first that matches a tensor's name counts.
    """

    type: str
    threads: int
    imatrix: Path | None = None
    imatrix_name: str = ""
    tensor_types: tuple[tuple[str, str], ...] = ()
    keep_output: str = ""
    embedding_type: str = ""
    force: bool = False


def task(source: GgufSource, target: Path, options: Options, *, dry_run: bool) -> Task:
    """What the child is given."""
    return Task(
        parts=tuple(map(str, source.parts)),
        target=str(target),
        ftype=types.FILE_TYPES[options.type],
        threads=options.threads,
        requantize=options.force,
        output_type=options.keep_output,
        embedding_type=options.embedding_type,
        # llama-quantize does the same with its patterns.
        tensor_types=tuple((pattern.lower(), name) for pattern, name in options.tensor_types),
        imatrix=str(options.imatrix or ""),
        imatrix_name=options.imatrix_name,
        max_buffer=MAX_BUFFER,
        dry_run=dry_run,
    )


def foretell(source: GgufSource, options: Options) -> Plan:
    """What would come out, in a fraction of a second. Raises ModelError, UsageError."""
    return child.dry_run(task(source, source.parts[0], options, dry_run=True))


def require_space(path: Path, n_bytes: int, purpose: str) -> None:
    """Raises DiskFullError unless `n_bytes` are free where `path` will be."""
    free = space.free(path.parent)
    if free < n_bytes:
        raise DiskFullError(
            f"{purpose} needs {size(n_bytes)} in {path.parent}, where {size(free)} are free",
            hint="free some space, or write to a larger disk with -o",
        )


def may_write(folder: Path) -> bool:
    """Whether files can be made in `folder`, or in what is there of it."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return there.is_dir() and os.access(there, os.W_OK)


def run(source: GgufSource, output: Path, plan: Plan, options: Options, on_tensor: child.OnTensor) -> None:
    """Quantise `source` to `output`, in place of what is there only with `options.force`.

    Raises ModelError, UsageError, DiskFullError; `output` is then as it was.
    """
    require_space(output, plan.file_size, "the quantised model")
    with written_aside(output, replace=options.force) as aside:
        child.run(task(source, aside, options, dry_run=False), on_tensor)
        _check_result(aside, plan)


@contextmanager
def written_aside(output: Path, *, replace: bool) -> Iterator[Path]:
    """A path to write to, which becomes `output` at the end of the block, or is removed if the block fails.

    replace: also where a file is there by then; a link is followed. Raises UsageError when another process is writing
    the same file, when one has appeared, or the folder refuses; ModelError when the folder has gone.
    """
    target = Path(os.path.realpath(output)) if replace else output
    with reserved(target, "part") as aside:
        yield aside
        require_still_there(aside)
        with aside.open("rb+") as file:
            os.fsync(file.fileno())
        if replace:
            aside.replace(target)
        else:
            _put_beside(aside, target)


def require_still_there(path: Path) -> None:
    """Raises ModelError where somebody has deleted what was being written."""
    if not path.exists():
        raise ModelError(
            f"{path.name} was deleted while it was being written, in {path.parent}", hint="run the command again"
        )


def _put_beside(aside: Path, target: Path) -> None:
    """Give the file its name where nobody else has it: a rename would replace that one's file."""
    try:
        if os.path.lexists(target):
            raise FileExistsError
        try:
            os.link(aside, target)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            aside.replace(target)
    except FileExistsError:
        raise UsageError(
            f"{target} has appeared meanwhile, and stays as it is", hint="use -o, or overwrite it with --force"
        ) from None


@contextmanager
def reserved(output: Path, suffix: str) -> Iterator[Path]:
    """A hidden path beside `output`, for this process alone; whatever is there at the end of the block is removed.

    Raises UsageError when another process has it, or the folder refuses.
    """
    aside = output.with_name(f".{output.name}.{suffix}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as e:
        raise UsageError(f"cannot write to {output.parent}: {e.strerror}", hint="write elsewhere with -o") from e
    try:
        _lock(file, aside, output)
        try:
            yield aside
        finally:
            if _is(file, aside):
                aside.unlink()
    finally:
        os.close(file)


def _lock(file: int, aside: Path, output: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = _is(file, aside)  # whoever had it may have renamed it just now: then it is the finished file
    except BlockingIOError:
        mine = False
    if not mine:
        raise UsageError(f"another pagedrun is writing {output}", hint="wait for it, or use -o")


def _is(file: int, path: Path) -> bool:
    """Whether the open file is what lies at `path`."""
    try:
        return os.fstat(file).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def _check_result(path: Path, plan: Plan) -> None:
    """Read what was written as any other file, without llama.cpp, and compare it with what was foretold."""
    require_still_there(path)
    try:
        found = {tensor.name: tensor.type for tensor in read_header(path).tensors}
    except ModelFileError as e:
        raise ModelError(f"what was written is no model: {e.message}", hint="please report it") from e
    wrong = sorted(name for name in found.keys() | plan.after.keys() if found.get(name) != plan.after.get(name))
    n_bytes = path.stat().st_size
    if wrong or n_bytes != plan.file_size:
        what = f"{wrong[0]} is {found.get(wrong[0])}" if wrong else f"it has {n_bytes:,} bytes"
        raise ModelError(f"what was written is not what was planned: {what}", hint="please report it")
