"""What happens before the first answer on a machine: the runtime is built, the small default model fetched."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pagedrun.errors import RuntimeLibraryError
from pagedrun.runtime.store import Runtime, find_runtime

if TYPE_CHECKING:
    from pagedrun.runtime.report import Reporter

#: Set by the launcher: a missing runtime is built instead of reported.
AUTO_SETUP = "PAGEDRUN_AUTO_SETUP"


def ensure_runtime() -> Runtime:
    """The runtime; built first if it is missing and the launcher asked for that (PAGEDRUN_AUTO_SETUP=1).

    Raises RuntimeLibraryError, or what setup raises.
    """
    try:
        return find_runtime()
    except RuntimeLibraryError:
        if os.environ.get(AUTO_SETUP) != "1":
            raise
    return _setup()


def fetch_model(report: Reporter) -> None:
    """The small default model, for a first run without any other. Raises what the hub raises."""
    from pagedrun.hub import fetch_default_model

    fetch_default_model(lambda done, total: report.progress("Fetching the default model", done, total))


def _setup() -> Runtime:
    """What `pagedrun setup` does without options."""
    from pagedrun.runtime.install import Options, install
    from pagedrun.runtime.report import StderrReporter

    with StderrReporter() as report:
        report.note("pagedrun builds its runtime now. This takes some minutes, once.")
        runtime = install(Options(), report)
        fetch_model(report)
    return runtime
