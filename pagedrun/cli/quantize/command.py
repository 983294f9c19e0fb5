"""`pagedrun quantize`: a smaller model out of a larger one. The new file's path goes to stdout.

command.py  the command: options, and the order of things
source.py   the source as a GGUF: located, fetched, converted
report.py   what is said about it, for people and as JSON
kept.py     what is remembered of it
values.py   what options hold; steps.py a bar; signals.py being told to end
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagedrun.cli import console
from pagedrun.cli.options import read_option_file
from pagedrun.cli.quantize import values
from pagedrun.cli.quantize.signals import ending_in_order
from pagedrun.errors import UsageError
from pagedrun.paths import expanded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pagedrun.quantize.compare import Comparison
    from pagedrun.quantize.job import Options
    from pagedrun.quantize.source import GgufSource, Source

_SOURCE = "A model: name, path of a GGUF file, hf:owner/repo[:quant], or a folder (or repository) with *.safetensors."
_TYPE = (
    "Q8_0, Q6_K, Q5_K_M, Q4_K_M, Q3_K_M, IQ4_XS, IQ2_M, MXFP4_MOE, F16, BF16 or any other name of llama.cpp's "
    "quantisations."
)
_OUT = "The new file, or a folder for it. Without it: beside a source that is a path, else the models folder."
_IMATRIX = "Use this importance matrix (GGUF, or the older format)."
_CALIBRATE = "Make an importance matrix from this text first; it stays beside the new file."
_TENSOR = "Another type for tensors whose names match this regular expression; may be repeated."
_KEEP_OUTPUT = "Type of the output tensor, such as q6_k; 'source' leaves it as it is."
_EMBEDDING = "Type of the token embeddings."
_CHECK = "Afterwards, compare both models on this text: perplexity and KL divergence."
_FORCE = "Overwrite the new file; quantise what is quantised already."
_WITH = "Package for the converter, such as torch==2.11.0, in place of the default; may be repeated."
_VERBOSE = "Show llama.cpp's log, and tracebacks."

_CONVERSION = "Conversion"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Texts:
    """The files with text, and how much of them."""

    calibrate: Path | None
    check: Path | None
    check_chunks: int | None


def quantize(  # noqa: PLR0913, PLR0917 - each is an option of the command
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=_SOURCE, show_default=False)],
    type_name: Annotated[str, typer.Option("--type", "-t", metavar="TYPE", help=_TYPE)] = "Q4_K_M",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help=_OUT, parser=values.path_of)
    ] = None,
    imatrix: Annotated[
        Path | None, typer.Option("--imatrix", metavar="FILE", help=_IMATRIX, parser=values.path_of)
    ] = None,
    calibrate: Annotated[
        Path | None, typer.Option("--calibrate", metavar="TEXT", help=_CALIBRATE, parser=values.path_of)
    ] = None,
    tensor_type: Annotated[
        list[str] | None, typer.Option("--tensor-type", metavar="PATTERN=TYPE", help=_TENSOR)
    ] = None,
    keep_output: Annotated[str | None, typer.Option("--keep-output", metavar="TYPE", help=_KEEP_OUTPUT)] = None,
    token_embedding_type: Annotated[
        str | None, typer.Option("--token-embedding-type", metavar="TYPE", help=_EMBEDDING)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only foretell what would come out.")] = False,
    check: Annotated[Path | None, typer.Option("--check", metavar="TEXT", help=_CHECK, parser=values.path_of)] = None,
    check_chunks: Annotated[
        int | None, typer.Option("--check-chunks", min=1, metavar="N", help="Compare on N x 512 tokens at most.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help=_FORCE)] = False,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, max=512, metavar="N", help="CPU threads [physical cores].")
    ] = None,
    pull: Annotated[bool, typer.Option("--pull", help="Fetch the source without asking if it is not here.")] = False,
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="REQUIREMENT", help=_WITH, rich_help_panel=_CONVERSION),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; sizes in bytes.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help=_VERBOSE, callback=console.set_verbose)] = False,
) -> None:
    """Quantise a model: a smaller file that needs less memory and runs faster, for some loss of quality.

    \b
    Q8_0     as good as the source            Q4_K_M   the usual balance of size and quality
    Q6_K     hardly a difference              Q3_K_M   noticeably worse
    Q5_K_M   a small one                      IQ2_M    where nothing larger fits; needs an importance matrix

    Start from a file with 16 or 32 bits a weight: what has been quantised already cannot get better. A model as
    safetensors is converted first, by llama.cpp's converter.
    """
    from pagedrun.cli.quantize import kept, report
    from pagedrun.cli.quantize import source as sources
    from pagedrun.config import load_config
    from pagedrun.first_run import ensure_runtime
    from pagedrun.native.imatrix import load_imatrix
    from pagedrun.native.library import load
    from pagedrun.native.placement import physical_cores
    from pagedrun.quantize import environment, types
    from pagedrun.quantize.job import Options
    from pagedrun.quantize.source import GgufSource, output_path

    texts = _Texts(calibrate=calibrate, check=check, check_chunks=check_chunks)
    _check_combinations(texts, imatrix, dry_run=dry_run)
    options = Options(
        type=types.file_type(type_name),
        threads=threads or load_config().threads or physical_cores(),
        imatrix=expanded(imatrix).absolute() if imatrix else None,
        imatrix_name=str(imatrix or ""),
        tensor_types=tuple(map(values.tensor_type, tensor_type or ())),
        keep_output=values.type_of("--keep-output", keep_output, also="source"),
        embedding_type=values.type_of("--token-embedding-type", token_embedding_type),
        force=force,
    )
    if options.imatrix:
        values.check_readable("--imatrix", options.imatrix)
        load_imatrix(options.imatrix)  # the child reads it too; what is wrong with it is said now
    for option, path in (("--calibrate", calibrate), ("--check", check)):
        if path is not None:
            read_option_file(path, option)
    environment.requirements(with_ or ())  # looked at now, used after the fetching
    named = sources.find(source, pull=pull)
    target = output_path(output, named, options.type)
    _refuse(named, target, options, texts, dry_run=dry_run)
    found = sources.bring(named, source, pull=pull)
    if not sources.is_conversion_alone(found, options.type):
        ensure_runtime()
        if verbose:
            load().log.verbose = True
    if with_ and isinstance(found, GgufSource):
        console.warn("--with changes nothing: only safetensors are converted, and this is a GGUF file")
    with ending_in_order(), sources.as_gguf(found, target, options, with_ or ()) as gguf:
        if gguf is None:  # converted to what was asked for
            kept.remember(found, target)
            report.show_converted(found, target, options.type, as_json=as_json)
        elif dry_run:
            _foretell(gguf, target, options, as_json=as_json)
        else:
            _quantize(gguf, target, options, texts, as_json=as_json)


def _check_combinations(texts: _Texts, imatrix: Path | None, *, dry_run: bool) -> None:
    if imatrix is not None and texts.calibrate is not None:
        raise UsageError("--imatrix and --calibrate exclude each other")
    if dry_run and texts.calibrate:
        raise UsageError(
            "--dry-run makes no importance matrix", hint="leave --calibrate out: it hardly changes the size"
        )
    if dry_run and texts.check:
        raise UsageError("--dry-run makes nothing that --check could compare", hint="leave one of them out")
    if texts.check_chunks and not texts.check:
        raise UsageError("--check-chunks needs --check TEXT")


def _refuse(source: Source, target: Path, options: Options, texts: _Texts, *, dry_run: bool) -> None:
    """Raises UsageError for what can be known to fail before anything is fetched, built or converted."""
    from pagedrun.cli.quantize import source as sources
    from pagedrun.quantize import beforehand
    from pagedrun.quantize.source import check_output

    if dry_run:
        if problem := beforehand.no_dry_run(source):
            raise problem
        return
    if problem := beforehand.objection(source, options, calibrating=texts.calibrate is not None):
        raise problem
    inputs = {"--imatrix": options.imatrix, "--calibrate": texts.calibrate, "--check": texts.check}
    made = {
        "--tensor-type": options.tensor_types,
        "--keep-output": options.keep_output,
        "--token-embedding-type": options.embedding_type,
    }
    unused = [option for option, value in {**inputs, **made}.items() if value]
    if unused and sources.is_conversion_alone(source, options.type):
        raise UsageError(f"{unused[0]} has no use where {options.type} is all that is made", hint="leave it out")
    check_output(target, source, force=options.force)
    sources.require_space(source, target, options.type)
    beforehand.require_other_file(target, inputs)
    if texts.calibrate:
        beforehand.require_other_file(target, {"--calibrate's matrix": _matrix_path(source, target)})
        _check_matrix(_matrix_path(source, target), force=options.force)


def _matrix_path(source: Source, target: Path) -> Path:
    """Where --calibrate writes its matrix."""
    return target.with_name(f"{source.name}.imatrix.gguf")


def _check_matrix(matrix: Path, *, force: bool) -> None:
    if matrix.exists() and not force:
        raise UsageError(
            f"{matrix} exists", hint="use it with --imatrix in place of --calibrate, or overwrite it with --force"
        )


def _foretell(source: GgufSource, target: Path, options: Options, *, as_json: bool) -> None:
    """--dry-run: what would come out; what speaks against it is only said."""
    from pagedrun.cli.quantize import report
    from pagedrun.quantize import checks, job

    checks.require_whole_blocks(source, options)
    plan = job.foretell(source, options)
    if objection := checks.objection(source, plan, options):
        console.warn(f"{console.printable(objection.message)}: {console.printable(console.typed(objection.hint))}")
    if not job.may_write(target.parent):
        console.warn(f"{console.printable(str(target.parent))} cannot be written to: write elsewhere with -o")
    report.show_remarks(plan, options)
    report.show_plan(source, plan, target, options.type, as_json=as_json)


def _quantize(source: GgufSource, target: Path, options: Options, texts: _Texts, *, as_json: bool) -> None:
    from pagedrun.cli.quantize import kept, report
    from pagedrun.cli.quantize.steps import StepProgress
    from pagedrun.quantize import checks, compare, job

    checks.require_whole_blocks(source, options)
    plan = job.foretell(source, options)
    if objection := checks.objection(source, plan, options, calibrating=texts.calibrate is not None):
        raise objection
    chunks = compare.chunks_of(_tokens(source, texts.check, "--check"), texts.check_chunks) if texts.check else None
    if texts.calibrate:
        _tokens(source, texts.calibrate, "--calibrate")  # enough of them?
        options = _calibrated(source, target, options, texts.calibrate)
        plan = job.foretell(source, options)
    report.announce(source, plan, target, options.type)
    report.show_remarks(plan, options)
    began = time.monotonic()
    with StepProgress("quantising") as progress:
        job.run(source, target, plan, options, progress)
    done = report.Done(source, target, options, plan, time.monotonic() - began)
    report.show_done(done)
    try:
        kept.remember(source, target)
        if chunks:
            done = replace(done, comparison=_compare(source, target, chunks, options.threads))
    except BaseException:
        console.note(f"{console.printable(str(target))} is finished all the same")
        raise
    finally:
        report.print_result(done, as_json=as_json)


def _tokens(source: GgufSource, path: Path, option: str) -> list[int]:
    """The text of an option in the model's vocabulary. Raises UsageError where that is of no use or too short."""
    from pagedrun.quantize import checks, compare

    checks.require_text_model(source, option)
    return compare.tokens_of(source.parts[0], read_option_file(path, option), option)


def _calibrated(source: GgufSource, target: Path, options: Options, text: Path) -> Options:
    """Make the importance matrix beside the target; returns the options with it."""
    from pagedrun.cli.quantize.steps import StepProgress
    from pagedrun.quantize.calibrate import calibrate
    from pagedrun.runtime.store import find_runtime

    matrix = _matrix_path(source, target)
    console.note(f"making an importance matrix from {console.printable(text.name)}")
    with StepProgress("calibrating") as progress:
        calibrate(
            find_runtime(),
            source.parts[0],
            expanded(text).absolute(),
            matrix,
            replace=options.force,
            threads=options.threads,
            on_chunk=progress,
        )
    console.note(f"wrote {console.printable(str(matrix))}")
    # Its name alone: where it lies is nobody's business who gets the model.
    return replace(options, imatrix=matrix, imatrix_name=matrix.name)


def _compare(source: GgufSource, target: Path, chunks: list[Sequence[int]], threads: int) -> Comparison:
    from pagedrun.cli.quantize import report
    from pagedrun.cli.quantize.steps import StepProgress
    from pagedrun.quantize.compare import compare

    with StepProgress("comparing with the source") as progress:
        found = compare(source.parts[0], target, chunks, threads=threads, on_chunk=progress)
    report.show_comparison(found)
    return found
