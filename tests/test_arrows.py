"""Imports point one way, and only `native` touches llama.cpp. Read from the sources, lazy imports included."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pagedrun"

# Rooms from the ground up. A module may import from its own room and from those below, never from above.
# A name stands for the module and for everything inside it.
ROOMS: list[tuple[str, ...]] = [
    ("errors", "units", "model"),
    ("paths", "sampling", "memory", "machine", "running", "footprint"),
    ("config", "request", "gguf_file", "catalog", "rope"),
    ("step", "text", "chat", "kv", "plan", "wire"),
    ("slots", "speeds", "sessions", "durable"),
    ("scheduling",),
    ("engine",),
    ("embedding",),
    ("runtime",),
    ("first_run",),
    ("hub",),
    ("native", "doctor"),
    ("service",),
    ("server", "remote"),
    ("planning", "spilling", "lasting"),
    ("opening", "sharing"),
    ("load", "load_embedding"),
    ("quantize",),
    ("cli",),
    ("__main__",),
]

# Policy runs under a fake runner, without a model and without C.
POLICY = (
    "config", "request", "sampling", "step", "text", "chat", "kv", "plan", "slots", "scheduling", "engine", "service",
    "server", "embedding",
)  # fmt: skip


def modules() -> dict[str, Path]:
    """Name below the package ("cli.main") -> file."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache
def imported(path: Path) -> frozenset[str]:
    """Full names of everything that a file imports, anywhere in it, except for type checking only."""
    names: set[str] = set()
    for node in _running_code(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def _running_code(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return [inner for child in node.orelse for inner in _running_code(child)]
    return [node, *(inner for child in ast.iter_child_nodes(node) for inner in _running_code(child))]


def ours(module: str) -> set[str]:
    """The modules of the package that `module` imports."""
    found = set()
    for name in imported(MODULES[module]):
        parts = name.split(".")
        if parts[0] == "pagedrun":
            below = parts[1:]
            while below and ".".join(below) not in MODULES:
                below = below[:-1]  # the last part was a function or a class
            if below:
                found.add(".".join(below))
    return found - {module}


def room(module: str) -> int:
    top = module.split(".", maxsplit=1)[0]
    for number, names in enumerate(ROOMS):
        if top in names:
            return number
    raise AssertionError(f"pagedrun.{module} has no room: give it one in {Path(__file__).name}, as low as it can be")


@pytest.mark.parametrize("module", sorted(set(MODULES) - {""}))
def test_imports_come_from_below(module: str) -> None:
    above = {name for name in ours(module) if room(name) > room(module)}
    assert not above, f"pagedrun.{module} must not import {', '.join(sorted(above))}"


def test_there_are_no_circles() -> None:
    try:
        TopologicalSorter({module: ours(module) for module in MODULES}).prepare()
    except CycleError as e:
        raise AssertionError(f"these modules import each other: {' -> '.join(e.args[1])}") from None


@pytest.mark.parametrize("module", [module for module in MODULES if module.split(".")[0] != "native"])
def test_only_native_touches_llama_cpp(module: str) -> None:
    tops = {name.split(".")[0] for name in imported(MODULES[module])}
    assert not tops & {"ctypes", "llama_cpp", "cffi"}


@pytest.mark.parametrize("module", [m for m in MODULES if m.split(".")[0].split("_")[0] in POLICY])
def test_policy_never_sees_the_runtime(module: str) -> None:
    below, queue = set(), [module]
    while queue:
        for name in ours(queue.pop()) - below:
            below.add(name)
            queue.append(name)
    assert not {name.split(".")[0] for name in below} & {"native", "runtime", "cli", "hub"}


def test_every_room_is_lived_in() -> None:
    names = [name for names in ROOMS for name in names]
    assert len(names) == len(set(names))
    assert {module.split(".")[0] for module in MODULES if module} == set(names)


def test_this_test_sees_lazy_imports_and_skips_types() -> None:
    tree = ast.parse("if TYPE_CHECKING:\n    import a\nelse:\n    import b\ndef f():\n    import c\n")
    found = {alias.name for node in _running_code(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert found == {"b", "c"}
    assert "pagedrun.runtime.install.install" in imported(MODULES["first_run"])
    assert "runtime.install" in ours("first_run")
    assert room("runtime.install") < room("cli")
