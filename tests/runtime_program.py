"""`python -m tests.runtime_program FOLDER [--tools]`: setup of the small stand-in, as a process that can be killed.

FOLDER/slow makes its compiler wait until that file is gone.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pagedrun.runtime import install
from pagedrun.runtime.report import StderrReporter
from tests.runtime_fakes import BUILD_ID_PATCH, TREE, make_bindings, make_sdist


def slow_tree(folder: Path) -> dict[str, str]:
    """The tree, with a step that waits before anything is compiled."""
    script = folder / "wait.sh"
    script.write_text(f"touch {folder}/building\nwhile [ -e {folder}/slow ]; do sleep 0.05; done\ntouch waited.c\n")
    wait = f"add_custom_command(OUTPUT waited.c COMMAND sh {script})\ntarget_sources(llama PRIVATE waited.c)\n"
    return {**TREE, "CMakeLists.txt": TREE["CMakeLists.txt"] + wait}


def main(folder: Path, *arguments: str) -> None:
    own = folder / f"sdist-{os.getpid()}"
    source = make_sdist(own, slow_tree(folder))
    bindings = folder / "bindings"
    if not bindings.exists():
        make_bindings(bindings)
    install.PINNED = source  # type: ignore[misc]
    install.shipped_patches = lambda: (BUILD_ID_PATCH,)
    install.fetch = lambda *_: own / source.file_name
    install.get_bindings = lambda *_: bindings
    runtime = install.install(install.Options(tools="--tools" in arguments, cpu=True), StderrReporter())
    print(runtime.root)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
