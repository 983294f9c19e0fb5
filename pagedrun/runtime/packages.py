"""pip, run with its own configuration: mirrors, proxies and certificates are the user's."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pagedrun.errors import DownloadError
from pagedrun.runtime import space
from pagedrun.runtime.process import run


def pip(
    arguments: Sequence[str], *, purpose: str, scratch: Path, extra_env: Mapping[str, str] | None = None, fd: int
) -> None:
    """Run `pip ARGUMENTS`, with its temporary files in `scratch`; `fd` is the lock to hold meanwhile.

    Raises DownloadError with the end of pip's output, or DiskFullError.
    """
    env = {**os.environ, "TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1", **(extra_env or {})}
    # An active `pip install --user` or target setting would fight with --target.
    for variable in ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV"):
        env.pop(variable, None)
    scratch.mkdir(parents=True, exist_ok=True)
    # -I: a typing.py or pip.py in the current folder must not be imported.
    result = run([sys.executable, "-I", "-m", "pip", *arguments, "--no-input"], env=env, pass_fds=(fd,))
    if result.status == 0:
        return
    if space.is_out_of_space(result.tail):
        raise space.ran_out(scratch, purpose)
    hint = "check the network, and pip's settings with: pip config list"
    if "No module named pip" in result.tail:
        hint = "this Python has no pip: python3 -m ensurepip, or your distribution's python3-pip"
    raise DownloadError(f"pip failed while {purpose}:\n{result.last_lines(8)}", hint=hint)
