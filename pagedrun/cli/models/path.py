"""`pagedrun path`: where a model's file is, for other programs."""

from __future__ import annotations

from typing import Annotated

import typer

from pagedrun.cli.models.rm import HELP
from pagedrun.cli.options import PullOption


def path(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=HELP)],
    pull: PullOption = False,
) -> None:
    """Print the path of a model's file; of a split model, that of its first part.

    llama-bench -m "$(pagedrun path qwen3.5-4b)"
    """
    from pagedrun.cli.models import missing
    from pagedrun.cli.table import print_path
    from pagedrun.gguf_file import check_file
    from pagedrun.hub.verify import explained

    found = missing.find_or_pull(model, pull=pull).path
    with explained(found):
        check_file(found)
    print_path(found)
