"""`pagedrun` with a short patience, in a process of its own: python -m tests.pull_program READ_S ARGS..."""

from __future__ import annotations

import sys

from pagedrun.cli import main
from pagedrun.hub import http

if __name__ == "__main__":
    read_s = float(sys.argv[1])
    http.patience = http.Patience(connect_s=5, read_s=read_s, answer_s=read_s, sleep=lambda seconds: None)
    main.main(sys.argv[2:])
