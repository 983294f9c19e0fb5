"""Makes .venv for the scripts beside this file: environment.py ROOT EXTRA [ARGUMENTS OF PAGEDRUN].

Several may run at once, and one may have been killed in the middle: the work is done under a lock, every step can be
repeated, and the stamp is written last.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

# What runs without a runtime, or brings one along.
_NEEDS_NO_COMPILER = {"doctor", "setup", "--help", "-h", "--version"}


def main(root: Path, extra: str, arguments: list[str]) -> None:
    require_venv()
    require_compiler(extra, arguments)
    venv = root / ".venv"
    stamp = venv / (f".pagedrun-{extra}" if extra else ".pagedrun")
    content = f"{root}\n{(root / 'pyproject.toml').read_text(encoding='utf-8')}"
    try:
        venv.mkdir(exist_ok=True)
        lock_file = (venv / ".lock").open("w")
    except OSError as e:
        fail(f"cannot write to {venv}: {e.strerror}", "use a checkout of your own, or install pagedrun with pip")
    with lock_file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another pagedrun is making the environment; waiting for it.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if is_current(venv, stamp, content):
            return
        clear_broken(venv)
        make(root, venv, extra)
        stamp.write_text(content, encoding="utf-8")
        if extra:  # it includes what is needed without the extra
            (venv / ".pagedrun").write_text(content, encoding="utf-8")


def is_current(venv: Path, stamp: Path, content: str) -> bool:
    """Whether it was made for these files, and still works."""
    try:
        if stamp.read_text(encoding="utf-8").rstrip() != content.rstrip():
            return False
    except (OSError, UnicodeDecodeError):
        return False
    return runs(venv, 'import importlib.util as u, sys; sys.exit(not u.find_spec("pagedrun"))')


def clear_broken(venv: Path) -> None:
    """Empty an environment whose python does not run: venv would keep its dangling link. The lock stays."""
    if not os.path.lexists(venv / "bin") or runs(venv, ""):
        return
    say(f"The Python of {venv} does not run any more.")
    for path in venv.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()


def runs(venv: Path, code: str) -> bool:
    try:
        return subprocess.run([venv / "bin/python", "-I", "-c", code], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def require_venv() -> None:
    try:
        import ensurepip  # noqa: F401 - Debian leaves it out
        import venv  # noqa: F401
    except ImportError:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        fail(
            f"{sys.executable} cannot make environments: its venv module is not installed",
            f"Debian, Ubuntu: sudo apt install python3-venv (or python{version}-venv)",
        )


def require_compiler(extra: str, arguments: list[str]) -> None:
    """Say so now, not after packages have been installed for a minute."""
    if arguments and arguments[0] in _NEEDS_NO_COMPILER and not extra:
        return
    cache = os.environ.get("PAGEDRUN_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "pagedrun")
    if any(Path(cache).expanduser().glob("runtime/current-*")):
        return
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    if not any(map(shutil.which, names)):
        fail(
            "pagedrun compiles its runtime once, and there is no C++ compiler on this machine",
            "Debian, Ubuntu: sudo apt install build-essential   Fedora: sudo dnf install gcc-c++   Arch: sudo pacman "
            "-S gcc   (or bring a runtime from another machine: scripts/pagedrun setup --from FILE)",
        )


def make(root: Path, venv: Path, extra: str) -> None:
    say(f"Making the Python environment {venv} (once).")
    # Over an existing or half-made folder this repairs it.
    run([sys.executable, "-I", "-m", "venv", str(venv)], "the environment could not be made")
    what = f"{root}[{extra}]" if extra else str(root)
    # -I: a typing.py or pip.py in the current folder must not be imported.
    pip = [str(venv / "bin/python"), "-I", "-m", "pip"]
    run(
        [*pip, "install", "--no-input", "--disable-pip-version-check", "-e", what],
        "pip could not install pagedrun's packages",
    )


def run(command: list[str], failure: str) -> None:
    """Run it quietly: on a terminal its last line is shown while it works, and all of it only if it fails."""
    env = {name: value for name, value in os.environ.items() if name not in ("PIP_USER", "PIP_TARGET", "PYTHONPATH")}
    lines = []
    with subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        for line in child.stdout:
            lines.append(line.rstrip())
            if sys.stderr.isatty():
                width = shutil.get_terminal_size().columns - 1
                print("\r\x1b[K" + lines[-1].strip()[:width], end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    if child.returncode != 0:
        print("\n".join(lines[-15:]), file=sys.stderr)
        fail(failure, "check the network, and pip's settings with: pip config list")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def fail(message: str, hint: str) -> None:
    say(f"error: {message}")
    say(f"hint:  {hint}")
    sys.exit(1)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as e:
        fail(f"the environment could not be made: {e}", "use a checkout of your own, or install pagedrun with pip")
