"""`pagedrun serve` in a process of its own, on loopback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Live:
    """A running server. `url` without /v1; `log` is what it said so far."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        self.url = ""

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_until_it_listens(self, seconds: float = 120) -> None:
        until = time.monotonic() + seconds
        while not (found := re.search(r"listening on (\S+)/v1", self.log)):
            assert self.process.poll() is None and time.monotonic() < until, self.log
            time.sleep(0.05)
        self.url = found[1]

    def stop(self, how: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(60)


@contextmanager
def live_server(folder: Path, *args: str, module: str = "pagedrun", **env: str) -> Iterator[Live]:
    log = folder / "server.log"
    command = [sys.executable, "-m", module, "serve", "--port", "0", *args]
    environment = {**os.environ, "PAGEDRUN_STATE": str(folder / "state"), **env}
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, stdout=file, stdin=subprocess.DEVNULL, env=environment)
    live = Live(process, log)
    try:
        live.wait_until_it_listens()
        yield live
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
