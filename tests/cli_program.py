"""The `pagedrun` command over the fake service, in a process of its own: `python -m tests.cli_program ARGS`.

FAKE_SAYS, FAKE_SIZE, FAKE_STEP_S, FAKE_LOAD_S and FAKE_DIGEST in the environment say what
`tests.cli_fakes.Fake` is to do.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from pagedrun.cli.main import main
from tests.cli_fakes import Fake


def set_attribute(where: str, value: Any) -> None:
    module, _, name = where.rpartition(".")
    setattr(importlib.import_module(module), name, value)


if __name__ == "__main__":
    environment = os.environ.get
    fake = Fake(
        says=os.environb.get(b"FAKE_SAYS", b"Hello!").decode(),  # UTF-8 in any locale
        size=int(environment("FAKE_SIZE", "4096")),
        step_s=float(environment("FAKE_STEP_S", "0")),
        load_s=float(environment("FAKE_LOAD_S", "0")),
        digest=environment("FAKE_DIGEST", ""),
    )
    fake.install(set_attribute)
    main()
