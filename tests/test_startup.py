"""What starts fast stays fast: the package and --help import none of the heavy modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pagedrun.cli import main

HEAVY = {
    "numpy",
    "rich",
    "prompt_toolkit",
    "llama_cpp",
    "huggingface_hub",
    "httpx",
    "gguf",
    "jinja2",
    "jsonschema",
    "psutil",
    "pynvml",
    "fastapi",
    "prometheus_client",
    "starlette",
    "uvicorn",
}
ROOT = Path(__file__).parents[1]

PROGRAM = f"""
import sys
DO
heavy = sorted(set(sys.modules) & {HEAVY!r})
print("heavy:", heavy, file=sys.stderr)
"""


def imported_by(do: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("DO", do)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return ran.stderr.splitlines()[-1]


def test_the_package_imports_nothing_heavy() -> None:
    assert imported_by("import pagedrun") == "heavy: []"


@pytest.mark.parametrize("args", [["--help"], ["--version"], *([command, "--help"] for command in main._COMMANDS)])
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    assert imported_by(f"from pagedrun.cli.main import run; assert run({args!r}) == 0") == "heavy: []"
