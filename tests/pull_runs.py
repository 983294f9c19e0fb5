"""Pulls under random faults, each from a seed: what `scripts/fuzz_pull.py` repeats and the tests sample.

Whatever the server does, a pull ends with the right file under its name, or with an error and a hint and no file. In
some runs the process is killed in the middle and started again; in some, two pull the same model at once. After an
error a last pull, from a server without faults, has to bring the right file out of whatever was left.
"""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from pagedrun.cli import main
from pagedrun.hub import http
from tests.fake_hub import FakeHub, Fault, Repo, model

READ_S = 0.25
KINDS = ("alone", "killed", "two at once")

_WHERE = {"hub": ("api", "resolve", "cdn", "cdn", "cdn"), "address": ("file",)}
_BODY = ("drop", "drop", "drop", "stall", "less", "more", "corrupt", "no_ranges", "bad_range")
_ANSWER = ("html", "gzip", "status", "status", "loop", "silent", "garbage")
# Without a checksum nobody can tell a changed byte, nor a length that is a lie each time.
_UNSEEN = ("corrupt", "less", "more")
_STATUSES = (401, 403, 404, 408, 416, 429, 500, 503)
_CODES = ("GatedRepo", "RepoNotFound", "EntryNotFound", "RevisionNotFound", "", "")


@dataclass(frozen=True)
class Ended:
    """How one process ended."""

    code: int
    out: str
    err: str


@dataclass
class Run:
    """One run: what was to be fetched, what happened, and what was wrong ("" where nothing was)."""

    seed: int
    kind: str
    name: str
    faults: list[str]
    ends: list[Ended] = field(default_factory=list)
    resumed: bool = False
    wrong: str = ""

    @property
    def outcome(self) -> str:
        """What a run that went well ended with."""
        return "clear error" if self.ends[-1].code else "right file"


class Lab:
    """A hub and a models folder, used for one run after the other."""

    def __init__(self, hub: FakeHub, root: Path) -> None:
        self.hub = hub
        self.models = root / "models"
        self.env = {
            "PAGEDRUN_MODELS": str(self.models),
            "PAGEDRUN_STATE": str(root / "state"),
            "PAGEDRUN_CONFIG": str(root / "config"),
            "HF_HOME": str(root / "hf"),
            "HF_ENDPOINT": hub.url,
            "HOME": str(root),
            "NO_PROXY": "*",
        }

    def run(self, seed: int) -> Run:
        """One run. What was wrong with it is in its `wrong`."""
        rng = random.Random(seed)
        self._clear()
        name, expected = self._offer(rng)
        source = "address" if name.startswith("http") else "hub"
        faults = [_fault(rng, source) for _ in range(rng.choice((0, 1, 1, 2, 3, 5)))]
        self.hub.faults[:] = faults
        said = [f"{f.where}: {f.kind}{f' {f.status}' if f.kind == 'status' else ''} ×{f.times or '∞'}" for f in faults]
        run = Run(seed, rng.choices(KINDS, (6, 2, 2))[0], name, said)
        getattr(self, f"_{run.kind.replace(' ', '_')}")(run, rng)
        run.wrong = self._judge(run, expected)
        run.resumed = any("range" in headers for headers in self.hub.asked("cdn") + self.hub.asked("file"))
        if not run.wrong and run.ends[-1].code:
            self.hub.faults.clear()
            last = self._pull(name)
            run.wrong = self._judge_end(last, expected) or ("" if last.code == 0 else f"not overcome: {last.err}")
        return run

    def _clear(self) -> None:
        self.hub.requests.clear()
        for path in sorted(self.models.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()

    def _offer(self, rng: random.Random) -> tuple[str, dict[Path, bytes]]:
        """Something to fetch: what to type for it, and what has to be where afterwards."""
        size = rng.choice((30, 4096, 70_000, 300_000, 900_000))
        content = model(size, rng.random())
        which = rng.randrange(4)
        self.hub.repos.clear()
        if which == 0:
            self.hub.files["m.gguf"] = content
            return self.hub.file_url("m.gguf"), {self.models / "m.gguf": content}
        parts = 3 if which == 1 else 1
        names = [f"M-Q4_K_M-0000{n}-of-00003.gguf" for n in (1, 2, 3)] if parts == 3 else ["M-Q4_K_M.gguf"]
        files = {name: model(size, rng.random()) for name in names}
        files = {f"sub/{name}" if which == 2 else name: content for name, content in files.items()}
        self.hub.repos["me/M-GGUF"] = Repo(files)
        return "hf:me/M-GGUF", {self.models / "me" / "M-GGUF" / path: content for path, content in files.items()}

    # --- ways of pulling ---

    def _alone(self, run: Run, rng: random.Random) -> None:
        run.ends.append(self._pull(run.name))

    def _killed(self, run: Run, rng: random.Random) -> None:
        """SIGKILL in the middle, once or more, then a pull that may end."""
        for _ in range(rng.choice((1, 1, 2))):
            where = "file" if run.name.startswith("http") else "cdn"
            self.hub.faults.append(Fault(where, "stall", None, at=rng.randrange(300_000)))
            with self._started(run.name, read_s=20) as process:
                asked = len(self.hub.asked(where))
                until = time.monotonic() + 20
                while process.poll() is None and len(self.hub.asked(where)) == asked and time.monotonic() < until:
                    time.sleep(0.005)
                time.sleep(rng.random() * 0.1)
                process.kill()
                process.communicate()
            self.hub.faults.pop()
        run.ends.append(self._pull(run.name))

    def _two_at_once(self, run: Run, rng: random.Random) -> None:
        with self._started(run.name, READ_S) as first, self._started(run.name, READ_S) as second:
            run.ends += [_ended(first), _ended(second)]

    def _pull(self, name: str) -> Ended:
        """In this process: most of the time of a short pull is the start of Python."""
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        patience = http.Patience(connect_s=5, read_s=READ_S, answer_s=READ_S, sleep=lambda seconds: None)
        with (
            mock.patch.dict(os.environ, self.env),
            mock.patch.object(http, "patience", patience),
            mock.patch.multiple(sys, stdout=out, stderr=err),
        ):
            code = main.run(["pull", name])
        out.flush()
        out.seek(0)
        return Ended(code, out.read(), err.getvalue())

    def _started(self, name: str, read_s: float) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.pull_program", str(read_s), "pull", name],
            env=os.environ | self.env,
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    # --- what has to be true afterwards ---

    def _judge(self, run: Run, expected: dict[Path, bytes]) -> str:
        return next((wrong for end in run.ends if (wrong := self._judge_end(end, expected))), "")

    def _judge_end(self, end: Ended, expected: dict[Path, bytes]) -> str:
        lines = end.err.strip().splitlines()
        if "Traceback" in end.err or "should not have happened" in end.err or end.code not in (0, 1):
            return f"ended with {end.code}: {end.err}"
        if end.code == 1 and not (any(li.startswith("error: ") for li in lines) and "\nhint:  " in end.err):
            return f"an error without its two lines: {end.err}"
        if end.code == 0 and end.out != f"{next(iter(expected))}\n":
            return f"another path than {next(iter(expected))}: {end.out}"
        if end.code == 1 and end.out:
            return f"an error that printed {end.out}"
        missing = [path.name for path in expected if not path.exists()]
        if end.code == 0 and missing:
            return f"done without {', '.join(missing)}"
        return self._judge_files(expected, done=end.code == 0)

    def _judge_files(self, expected: dict[Path, bytes], *, done: bool) -> str:
        for path in self.models.rglob("*"):
            inside = path.relative_to(self.models)
            if path.is_dir():
                continue
            if inside.parts[0] == ".pull":
                if done:
                    return f"left over: {inside}"
                if path.name not in ("part", "id", "total", "lock"):
                    return f"unknown: {inside}"
            elif path in expected:
                if path.read_bytes() != expected[path]:
                    return f"WRONG CONTENT under {inside}"
            elif not (path.name.startswith(".") and path.name.endswith(".json")):
                return f"unknown: {inside}"
        return ""


def _ended(process: subprocess.Popen[str]) -> Ended:
    out, err = process.communicate(timeout=60)
    return Ended(process.returncode, out, err)


def _fault(rng: random.Random, source: str) -> Fault:
    where = rng.choice(_WHERE[source])
    kinds = [kind for kind in (*_BODY, *_ANSWER) if source == "hub" or kind not in _UNSEEN]
    kind = rng.choice(kinds if where in ("cdn", "file") else (*_ANSWER, "drop", "stall"))
    headers = {"X-Error-Code": rng.choice(_CODES)}
    if rng.random() < 0.3:
        headers["Retry-After"] = rng.choice(("0", "5", "100000", "soon"))
    return Fault(
        where,
        kind,
        times=rng.choice((1, 1, 1, 2, 4, None)),
        at=int(300_000 ** rng.random()),
        status=rng.choice(_STATUSES),
        headers=headers,
    )
