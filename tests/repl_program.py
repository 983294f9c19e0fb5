"""`pagedrun chat` over the fake service, as a program of its own: python -m tests.repl_program SIZE STEP_S [ARG...]"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pagedrun.cli import generate, main
from tests.repl_fakes import fake_service, located


def run(size: int, step_s: float, arguments: list[str]) -> None:
    @contextmanager
    def open_model(*_: Any) -> Iterator[Any]:
        with fake_service(size=size, step_s=step_s) as service:
            yield service

    generate.find_model = lambda name, *, pull=False: located(origin="named" if name else "default")
    generate.open_model = open_model
    main.main(["chat", *arguments])


if __name__ == "__main__":
    run(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
