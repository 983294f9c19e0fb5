"""What happens before the first answer on a machine: the runtime is built, if the launcher asked for that."""

from __future__ import annotations

import os

from pagedrun.errors import RuntimeLibraryError
from pagedrun.runtime.store import Runtime, find_runtime

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
    from pagedrun.runtime.install import Options, install
    from pagedrun.runtime.report import StderrReporter

    with StderrReporter() as report:
        report.note("pagedrun builds its runtime now. This takes some minutes, once.")
        return install(Options(), report)
