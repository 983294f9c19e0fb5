"""What `pagedrun quantize` says: before, after, and as JSON. Notes go to stderr; stdout has the path, or what was
asked for with --dry-run or --json."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pagedrun import machine, memory
from pagedrun.cli import console
from pagedrun.cli.table import print_json, print_path, print_table, print_text
from pagedrun.gguf_file import ModelFacts, read_facts
from pagedrun.gguf_file.groups import GROUPS
from pagedrun.native.quantizer import Plan
from pagedrun.quantize.checks import remarks
from pagedrun.quantize.compare import Comparison
from pagedrun.quantize.job import Options
from pagedrun.quantize.source import FolderSource, GgufSource
from pagedrun.runtime import space
from pagedrun.units import count, duration, size


@dataclass(frozen=True, slots=True)
class Done:
    """A quantisation that has been made. seconds: what it took, without calibration and comparison."""

    source: GgufSource
    target: Path
    options: Options
    plan: Plan
    seconds: float
    comparison: Comparison | None = None


@dataclass(frozen=True, slots=True)
class _Group:
    """One group of tensors: how many, bytes before and after, and how many have which type afterwards."""

    name: str
    tensors: int
    before: int
    after: int
    types: dict[str, int]


def announce(source: GgufSource, plan: Plan, target: Path, type_name: str) -> None:
    """What is about to be done."""
    name = console.printable(source.name)
    console.note(f"quantising {name} to {type_name}: {size(source.size)} -> {size(plan.file_size)}")
    console.note(f"into {console.printable(str(target))}")


def show_remarks(plan: Plan, options: Options) -> None:
    """What may not be what was meant."""
    if plan.fallbacks:
        have, get = ("has", "gets") if plan.fallbacks == 1 else ("have", "get")
        console.note(
            f"{count(plan.fallbacks, 'tensor')} {have} rows that {options.type} cannot hold, and {get} a larger type: "
            "the file gets larger than usual for its type"
        )
    for remark in remarks(plan, options):
        console.warn(console.printable(remark))


def show_plan(source: GgufSource, plan: Plan, target: Path, type_name: str, *, as_json: bool) -> None:
    """--dry-run: a table of groups, sums, and whether disk and memory hold it. Raises OutputError."""
    facts = read_facts(source.parts[0])
    groups = _groups(facts, plan)
    free_disk = space.free(target.parent)
    fit = memory.fit(plan.file_size, machine.free_memory())
    if as_json:
        print_json(
            {
                "path": str(target),
                "type": type_name,
                **_sizes(source, plan, facts),
                "groups": [asdict(group) for group in groups],
                "fits_disk": plan.file_size <= free_disk,
                "fits_memory": bool(fit),
                "needs_imatrix": plan.needs_imatrix,
            }
        )
        return
    rows = [
        (
            group.name,
            count(group.tensors),
            size(group.before),
            size(group.after),
            f"{group.after / max(sum(plan.sizes.values()), 1):.1%}",
            ", ".join(f"{kind} x {n}" for kind, n in group.types.items()),
        )
        for group in groups
    ]
    print_table(
        ("GROUP", "TENSORS", "BEFORE", "AFTER", "SHARE", "TYPES"),
        rows,
        right={"TENSORS", "BEFORE", "AFTER", "SHARE"},
    )
    disk = "" if plan.file_size <= free_disk else f"; it does not fit the disk, where {size(free_disk)} are free"
    print_text(
        f"\nfile     {size(source.size)} -> {size(plan.file_size)} ({plan.file_size:,} B){disk}\n"
        f"weights  {facts.bits_per_weight:.2f} -> {_bits(plan, facts):.2f} bits each\n"
        f"memory   {fit if fit else f'does not fit: {fit}'}"
    )


def show_done(done: Done) -> None:
    """Size, bits per weight and time, before and after."""
    facts = read_facts(done.source.parts[0])
    now = read_facts(done.target)
    share = now.file_size / max(facts.file_size, 1)
    rows = (
        ("", "before", "after"),
        ("file", size(facts.file_size), f"{size(now.file_size)} ({share:.0%})"),
        ("bits per weight", f"{facts.bits_per_weight:.2f}", f"{now.bits_per_weight:.2f}"),
    )
    for label, before, after in rows:
        console.note(f"{label:<16}{before:>10}  {after}")
    console.note(f"took {duration(done.seconds)}")


def show_comparison(found: Comparison) -> None:
    """What --check found."""
    worse = found.ppl_result / found.ppl_source - 1
    rows = (
        ("perplexity", f"{found.ppl_source:.4f} -> {found.ppl_result:.4f} ({worse:+.2%})"),
        ("KL divergence", f"{found.kl_mean:.5f} on average, {found.kl_max:.3f} at most"),
        ("same top token", f"{found.same_top:.2%}, of {count(found.n_tokens, 'token')}"),
    )
    for label, text in rows:
        console.note(f"{label:<16}{text}")


def print_result(done: Done, *, as_json: bool) -> None:
    """The path, or one JSON object. Raises OutputError."""
    if not as_json:
        print_path(done.target)
        return
    facts = read_facts(done.source.parts[0])
    print_json(
        {
            "path": str(done.target),
            "type": done.options.type,
            **_sizes(done.source, done.plan, facts),
            "seconds": round(done.seconds, 3),
            "imatrix": str(done.options.imatrix) if done.options.imatrix else None,
            "groups": [asdict(group) for group in _groups(facts, done.plan)],
            "check": asdict(done.comparison) if done.comparison else None,
        }
    )


def show_converted(source: FolderSource | GgufSource, target: Path, type_name: str, *, as_json: bool) -> None:
    """A conversion without quantisation: size on stderr, the path or JSON on stdout. Raises OutputError."""
    facts = read_facts(target)
    console.note(f"converted {console.printable(source.name)}: {size(source.size)} -> {size(facts.file_size)}")
    if as_json:
        print_json(
            {
                "path": str(target),
                "type": type_name,
                "size_before": source.size,
                "size": facts.file_size,
                "bits_per_weight": round(facts.bits_per_weight, 4),
            }
        )
    else:
        print_path(target)


def _sizes(source: GgufSource, plan: Plan, facts: ModelFacts) -> dict[str, Any]:
    return {
        "size_before": source.size,
        "size": plan.file_size,
        "bits_per_weight_before": round(facts.bits_per_weight, 4),
        "bits_per_weight": round(_bits(plan, facts), 4),
    }


def _bits(plan: Plan, facts: ModelFacts) -> float:
    return 8 * sum(plan.sizes.values()) / max(facts.n_params, 1)


def _groups(facts: ModelFacts, plan: Plan) -> list[_Group]:
    found = []
    for name in GROUPS:
        tensors = [tensor for tensor in facts.tensors if tensor.group == name]
        if tensors:
            types = dict(Counter(plan.after[t.name] for t in tensors).most_common())
            after = sum(plan.sizes[t.name] for t in tensors)
            found.append(_Group(name, len(tensors), sum(t.n_bytes for t in tensors), after, types))
    return found
