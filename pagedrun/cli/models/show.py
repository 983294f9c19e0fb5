"""`pagedrun show`: what a model is, from its file's header and the registry, without loading it.

show.py         the command
show_text.py    for people: lines and tables
show_json.py    for programs: one object
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pagedrun.cli.options import ModelArgument

if TYPE_CHECKING:
    from pagedrun.cli.models.show_text import Shown


def show(
    model: ModelArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; sizes in bytes.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="Print every tensor.")] = False,
    template: Annotated[bool, typer.Option("--template", help="Print the chat template that is used.")] = False,
    metadata: Annotated[bool, typer.Option("--metadata", help="Print the file's metadata.")] = False,
) -> None:
    """Show what a model is: its weights, what a conversation costs, template, sampling, licence.

    Reads the file's header only, and needs no runtime. Of a model of the registry that is not here it shows what the
    registry knows. --tensors, --template and --metadata print that alone; with --json they add to the object.
    """
    from pagedrun.cli import console, table
    from pagedrun.cli.models import show_json, show_text

    shown = _find(model)
    if shown.facts is None and (as_json or not (tensors or template or metadata)):
        console.note(
            f"{shown.name} is not on this machine; {console.typed(f'get it with: pagedrun pull {shown.name}')}"
        )
    if as_json:
        table.print_json(show_json.to_json(shown, tensors=tensors, template=template, metadata=metadata))
        return
    if tensors:
        show_text.print_tensors(shown)
    if metadata:
        show_text.print_metadata(shown)
    if template:
        show_text.print_template(shown)
    if not (tensors or metadata or template):
        show_text.print_overview(shown)


def _find(name: str | None) -> Shown:
    """The model's file, read; or, where it is absent, its registry entry. Raises ModelError."""
    from pagedrun import hub, machine
    from pagedrun.catalog import load_catalog
    from pagedrun.cli.models.show_text import Shown
    from pagedrun.errors import ModelNotFoundError
    from pagedrun.gguf_file import read_facts
    from pagedrun.hub import places
    from pagedrun.hub.verify import explained

    free = machine.free_memory()
    try:
        located = hub.locate(name)
    except ModelNotFoundError:
        catalog = load_catalog()
        spec = catalog.get(catalog.default if name is None else name)
        if spec is None:
            raise
        return Shown(spec.name, spec, None, free)
    with explained(located.path):
        facts = read_facts(located.path)
    return Shown(located.name, located.spec, facts, free, places.keeper(located.path))
