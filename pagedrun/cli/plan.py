"""`pagedrun plan`: what goes where, how long conversations can be, how fast it will be; before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagedrun.cli.options import ModelArgument, PlanOptions, PullOption, with_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pagedrun.hub import LocatedModel
    from pagedrun.plan.ahead import WithRam
    from pagedrun.planning import Planned

_OTHERS = "what else is here: pagedrun list"
_MOST = 4 << 40  # bytes of a GPU that one may ask about


@with_options
def plan(
    model: ModelArgument = None,
    *,
    engine: PlanOptions,
    pull: PullOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; sizes in bytes.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say why each choice was made.")] = False,
) -> None:
    """Show how a model would be placed on this machine: VRAM, RAM and disk, context, speed.

    Nothing is loaded, but the model's file has to be here. --gpu-memory 6GiB asks about a GPU of that size, whether it
    is here or not. Leaves with 1 if it does not fit, and says what would. Speeds are predictions, from how fast this
    machine's memories are; that is measured once.
    """
    from pagedrun.cli import table
    from pagedrun.plan.ahead import with_other_ram
    from pagedrun.plan.data import to_data

    planned = _planned(_located(model, pull=pull), engine)
    short_of_ram = planned.plan.fits or planned.plan.missing_in == "RAM"
    others = with_other_ram(planned.machine, planned.with_machine) if short_of_ram else ()
    if as_json:
        table.print_json(to_data(planned.plan, planned.machine, others))
    else:
        _show(planned, explain=explain)
        _show_rams(planned, others)
    if not planned.plan.fits:
        _refuse(planned)


def _located(model: str | None, *, pull: bool) -> LocatedModel:
    """The file, fetched where that is agreed to. Raises as `find_model`, with what to do about it."""
    from pagedrun.cli.generate import find_model
    from pagedrun.errors import ModelError, ModelNotFoundError, UsageError

    if model is not None and not model.strip():
        raise UsageError("the model's name is empty", hint=_OTHERS)
    try:
        return find_model(model, pull=pull)
    except ModelNotFoundError as e:
        if model and (hint := _in_folder(model)):
            raise ModelNotFoundError(f"{model} is a folder", hint=hint) from e
        raise ModelNotFoundError(e.message, hint=e.hint or _OTHERS) from e
    except ModelError as e:
        raise type(e)(e.message, hint=e.hint or _OTHERS) from e


def _in_folder(model: str) -> str:
    """What to type for a folder that was named instead of a file; "" where it is none, or a model is called so."""
    from pagedrun.catalog import load_catalog
    from pagedrun.paths import expanded

    folder = expanded(model)
    if load_catalog().get(model) or not folder.is_dir():
        return ""
    files = sorted(folder.glob("*.gguf"))
    return f"name a file in it, such as {files[0]}" if files else f"there is no GGUF file in it; {_OTHERS}"


def _planned(located: LocatedModel, engine: PlanOptions) -> Planned:
    """The plan, from the file's header. Raises ModelError, UsageError."""
    from pagedrun import machine
    from pagedrun.errors import ModelError, UsageError
    from pagedrun.gguf_file import read_facts, why_no_text
    from pagedrun.hub.verify import explained
    from pagedrun.planning import machine_facts, plan_model
    from pagedrun.rope import yarn_of
    from pagedrun.units import size

    config = engine.settings()
    if engine.gpu_memory and config.gpu_memory > _MOST:
        raise UsageError(
            f"--gpu-memory {engine.gpu_memory}: there is no GPU of more than {size(_MOST)}", hint="for example 24GiB"
        )
    with explained(located.path):
        facts = read_facts(located.path)
    if what := why_no_text(facts):
        raise ModelError(f"{located.name} does not generate text: it is {what}", hint=_OTHERS)
    yarn_of(facts, config, name=located.name)
    gpus = machine.gpus() if config.gpu_layers != 0 else []
    supposed = config.gpu_memory if engine.gpu_memory and config.gpu_layers != 0 else 0
    found = machine_facts(located.path, config, gpus, supposed=supposed, probe=True)
    planned = plan_model(facts, config, found, _library() if gpus else None)
    if not planned.shape.known:
        raise ModelError(
            f"there is no plan for the architecture {planned.shape.architecture!r}",
            hint="llama.cpp places its layers by itself when it is loaded",
        )
    return replace(planned, plan=replace(planned.plan, model=_called(located)))


def _called(located: LocatedModel) -> str:
    """What other commands call it; of a file its name, not its folders."""
    return Path(located.name).name if located.name == str(located.path) else located.name


def _library() -> object | None:
    """The runtime, to ask it about buffers; None where there is none, or one for the CPU alone."""
    from pagedrun.errors import RuntimeLibraryError
    from pagedrun.native.library import load

    try:
        library = load()
    except RuntimeLibraryError:
        return None
    return library if library.llama.llama_supports_gpu_offload() else None


def _show(planned: Planned, *, explain: bool) -> None:
    from pagedrun.cli import table
    from pagedrun.plan import text

    plan = planned.plan
    table.print_text("\n".join(map(_wrapped, text.summary(plan, planned.machine))) + "\n")
    table.print_table(text.ITEM_TITLES, text.item_rows(plan), right=text.ITEM_TITLES[1:])
    if not plan.fits:
        return
    if rows := text.kv_rows(plan):
        table.print_text("")
        table.print_table(text.KV_TITLES, rows, right=text.KV_TITLES[2:])
    table.print_text("")
    table.print_table(text.SPEED_TITLES, text.speed_rows(plan), right=text.SPEED_TITLES)
    if explain:
        table.print_text("\n" + "\n".join(_wrapped(f"- {reason}") for reason in plan.reasons))


def _wrapped(line: str) -> str:
    """A sentence, between words in as many lines as a terminal needs; one line for whatever else reads it."""
    import shutil
    import sys
    import textwrap

    from pagedrun.cli import console

    if not console.is_terminal(sys.stdout):
        return line
    width = max(shutil.get_terminal_size().columns, 20)
    return textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _show_rams(planned: Planned, others: Sequence[WithRam]) -> None:
    from pagedrun.cli import console, table
    from pagedrun.plan import text

    plan = planned.plan
    lines = [text.needed_line(plan)]
    lines += [text.ram_line(other) for other in others]
    table.print_text("\n" + "\n".join(map(_wrapped, lines)))
    for note in [*_notes(planned), *text.notes(plan, planned.machine)]:
        console.note(note)


def _notes(planned: Planned) -> Iterator[str]:
    """What one may have meant otherwise."""
    from pagedrun.rope import scaling_text
    from pagedrun.units import size

    config, plan = planned.config, planned.plan
    if scaled := scaling_text(config, planned.shape.n_ctx_train):
        yield scaled
    if plan.off_gpu:
        yield f"{plan.off_gpu}; everything is computed on the CPU"
    elif not plan.vram and config.gpu_memory > (there := plan.context):
        lower = "lower it, or other programs have to give way"
        yield f"gpu_memory is {size(config.gpu_memory)}, and only {size(there)} of RAM are left for it: {lower}"
    if plan.total("disk") > plan.disk:
        yield f"disk_space is {size(config.disk_space)}, and only {size(plan.disk)} of disk are free"


def _refuse(planned: Planned) -> None:
    from pagedrun.errors import NotEnoughMemoryError
    from pagedrun.plan import text

    message, hint = text.refusal(planned.plan)
    raise NotEnoughMemoryError(f"{planned.plan.model}: {message}", hint=hint)
