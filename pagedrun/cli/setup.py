"""`pagedrun setup`: build the runtime, or move one between machines."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagedrun.errors import UsageError

if TYPE_CHECKING:
    from pagedrun.runtime.install import Options

_CPU = "Build for the CPU alone, even if there is a GPU."
_CUDA_ARCH = "Build for CUDA and these compute capabilities, such as 86,89, whatever GPU is here."
_PORTABLE = "Build for any x86-64 processor with AVX2, not for this one alone."
_TOOLS = "Also build more of llama.cpp's own programs: completion, bench, batched-bench, quantize, server."
_EXPORT = "Write the runtime to FILE (.tar.xz or .tar.gz), for a machine without a compiler."
_FROM = "Install the runtime in FILE, which --export wrote; compiles nothing."
_CLEAN = "Delete build folders, and runtimes that this version does not use."


def setup(  # noqa: PLR0913, PLR0917 - each is an option of the command
    cpu: Annotated[bool, typer.Option("--cpu", help=_CPU)] = False,
    cuda_arch: Annotated[str, typer.Option("--cuda-arch", metavar="CC,...", help=_CUDA_ARCH)] = "",
    portable: Annotated[bool, typer.Option("--portable", help=_PORTABLE)] = False,
    tools: Annotated[bool, typer.Option("--tools", help=_TOOLS)] = False,
    no_model: Annotated[bool, typer.Option("--no-model", help="Do not fetch the small default model.")] = False,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Compilers to run at once.")] = None,
    export: Annotated[Path | None, typer.Option("--export", metavar="FILE", help=_EXPORT)] = None,
    from_file: Annotated[Path | None, typer.Option("--from", metavar="FILE", help=_FROM)] = None,
    clean: Annotated[bool, typer.Option("--clean", help=_CLEAN)] = False,
) -> None:
    """Build or install the native runtime.

    Fetches the pinned llama.cpp sources, applies pagedrun's patches, compiles, and fetches the small default model.
    What is already there is kept, and an interrupted setup goes on where it stopped.
    """
    from pagedrun.runtime.install import Options

    if sum(map(bool, (export, from_file, clean))) > 1:
        raise UsageError("--export, --from and --clean exclude each other")
    if cpu and cuda_arch:
        raise UsageError("--cpu and --cuda-arch exclude each other")
    if export:
        _export(export)
    elif clean:
        _clean()
    else:
        archs = tuple(part.strip().replace(".", "") for part in cuda_arch.replace(";", ",").split(",") if part.strip())
        options = Options(cpu=cpu, cuda_archs=archs, portable=portable, tools=tools, jobs=jobs)
        _install(options, from_file, with_model=not no_model)


def _install(options: Options, from_file: Path | None, *, with_model: bool) -> None:
    from pagedrun.hub import fetch_default_model
    from pagedrun.runtime.archive import install_from
    from pagedrun.runtime.install import install
    from pagedrun.runtime.report import StderrReporter
    from pagedrun.units import duration

    began = time.monotonic()
    with StderrReporter() as report:
        runtime = install_from(from_file, report) if from_file else install(options, report)
        if with_model:
            fetch_default_model(lambda done, total: report.progress("Fetching the default model", done, total))
        report.close()
        took = time.monotonic() - began
        after = f" after {duration(took)}" if took > 1 else ""
        report.note(f"Ready for {runtime.manifest.backend}{after}: {runtime.root}")


def _export(target: Path) -> None:
    from pagedrun.runtime.archive import export
    from pagedrun.runtime.report import StderrReporter
    from pagedrun.runtime.store import find_runtime
    from pagedrun.units import size

    with StderrReporter() as report:
        export(find_runtime(), target, report)
        report.close()
        report.note(f"Wrote {target} ({size(target.stat().st_size)}). Use it with: pagedrun setup --from {target.name}")


def _clean() -> None:
    from pagedrun.runtime.install import clean
    from pagedrun.runtime.report import StderrReporter
    from pagedrun.units import size

    with StderrReporter() as report:
        report.note(f"Freed {size(clean(report))}.")
