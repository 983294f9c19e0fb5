"""A process that saves one session again and again, and says on stdout what is saved: to be killed at any moment.

    python -m tests.session_saver FOLDER NAME SEED [--endless]      one line "N" when state N is saved

What state N is follows from SEED and N, so that whoever killed it can tell whether a file is one of them. Some saves go
on from the one before, some have been cut, and some write the file anew.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from pagedrun.sessions import Contents, Mark, SessionFolder
from tests.session_files import BLOCKS, contents


def state(seed: int, number: int) -> tuple[Contents, int, bool]:
    """A conversation; how many of its tokens the one before had; and whether the file is written anew.

    The first token says which state it is of those that are written anew, the number is in the usage.
    """
    start = number - number % 8
    tokens, kept = [start], 0
    for n in range(start, number + 1):
        rng = random.Random(f"{seed}/{n}")
        kept = 0 if n == start else len(tokens) if rng.random() < 0.7 else rng.randrange(1, len(tokens) + 1)
        tokens = tokens[: max(kept, 1)] + [rng.randrange(1 << 20) for _ in range(rng.randrange(1, 30))]
    at = [p for p in (4, 20, 60) if p <= len(tokens)]
    return contents(tokens, at, BLOCKS, usage={"number": number}), kept, number == start


def main() -> None:
    folder, name, seed = SessionFolder(Path(sys.argv[1]), 0), sys.argv[2], int(sys.argv[3])
    mark: Mark | None = None
    number = 0
    while True:
        saved, kept, anew = state(seed, number)
        mark = folder.save(name, saved, None if anew or mark is None else mark.cut(kept))
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        number += 1


if __name__ == "__main__":
    main()
