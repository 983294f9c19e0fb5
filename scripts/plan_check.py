"""What plans predict against what happens: VRAM as the driver reports it, and speed, with most of the GPU taken away.

    python scripts/plan_check.py 35b.gguf 8b.gguf [--gib 6 8 12] [--depths 0 32768] [--kv-type f16] [--name plan]

Each line is a process of its own under scripts/vram_ballast.py. Memory is compared with pages as they are after the
deepest prompt: the plan's line for pages is replaced by what they took. Passes (exit 0) if every prediction is within
3 % and none is more than 64 MiB too low.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bench

from pagedrun import load, machine
from pagedrun.config import EngineConfig
from pagedrun.planning import machine_facts

MIB = 1 << 20
MOST_UNDER, TOLERANCE = 64 * MIB, 0.03
ANSWER = 32


@contextmanager
def loaded(path: Path, config: EngineConfig, gpus: Sequence[machine.Gpu]) -> Iterator[tuple[Any, Any]]:
    """A service over a model as every command loads it, and the plan that loading made; None: it made none."""
    plans: list[Any] = [None]
    make = load._plan

    def noted(*arguments: Any) -> Any:
        plans.append(make(*arguments))
        return plans[-1]

    if gpus:
        machine_facts(path, config, gpus, probe=True)  # in a process of its own; what it finds is remembered
    load._plan = noted  # type: ignore[assignment]
    try:
        with load.load_service(path, config) as service:
            yield service, plans[-1]
    finally:
        load._plan = make


def child(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One model in what the ballast left; the plan is the one that loading makes."""
    before = bench.in_use(gpu=True)
    gpus = machine.gpus()
    config = EngineConfig(gpu_memory=gpus[0].vram_free, kv_type=args.kv_type, max_seq_len=args.max_seq_len)
    with loaded(path, config, gpus) as (service, plan):
        rows: dict[str, Any] = {"plan": plan_row(plan)}
        rows["speed"] = [speed(service, depth, plan) for depth in args.depths]
        rows["memory"] = memory_row(plan, service.stats.kv, bench.in_use(gpu=True) - before)
    return rows


def memory_row(plan: Any, kv: Any, actual: int) -> dict[str, Any]:
    """What the plan says against `actual` bytes that the driver reports. kv: figures of the pages, None without."""
    pages = next(item.vram for item in plan.items if item.name == "KV pages")
    held = 0 if kv is None else kv.device.n_bytes + (kv.spill.stage_bytes if kv.spill else 0)
    predicted = plan.total("vram") - pages + held
    buffers = sum(i.vram for i in plan.items if i.name in ("compute buffers", "recurrent states, windows"))
    return {
        "predicted MiB": predicted / MIB,
        "driver MiB": actual / MIB,
        "difference MiB": (predicted - actual) / MIB,
        "buffers MiB": f"{buffers / MIB:.0f} / {0 if kv is None else kv.buffer_bytes / MIB:.0f}",
        "pages MiB": held / MIB,
        "pages planned MiB": pages / MIB,
        "within": abs(predicted - actual) <= TOLERANCE * actual and predicted >= actual - MOST_UNDER,
    }


def plan_row(plan: Any) -> dict[str, Any]:
    settings = plan.settings
    return {
        "layers": settings.gpu_layers,
        "experts in RAM": len(settings.ram_experts),
        "window": settings.max_seq_len,
        "batch": settings.batch,
        "hot": plan.kv.hot,
    }


def speed(service: Any, depth: int, plan: Any) -> dict[str, Any]:
    """Decode after a prompt of `depth` tokens, and the prompt itself; with the plan's figures for that depth."""
    from pagedrun.request import Finished, GenerationRequest
    from pagedrun.sampling import SamplingParams

    n = max(min(depth, service.limits.max_seq_len - ANSWER - 1), 2048)
    prompt = tuple(random.Random(depth).choices(range(1000, 60_000), k=n))
    request = GenerationRequest(
        prompt=prompt, max_tokens=ANSWER, sampling=SamplingParams(temperature=0.0, ignore_eos=True)
    )
    (end,) = (event for event in service.submit(request) if isinstance(event, Finished))
    assert end.error is None, end.error
    near = min(plan.speeds, key=lambda s: abs(s.depth - depth))
    return {
        "depth": n,
        "decode": (ANSWER - 1) / end.timings.decode_s,
        "predicted decode": near.decode,
        "prefill": n / end.timings.prompt_s,
        "predicted prefill at that depth": near.prefill,
    }


def run(path: Path, gib: float, args: argparse.Namespace) -> dict[str, Any]:
    """The child's answer."""
    here = Path(__file__).parent
    depths = [str(depth) for depth in args.depths]
    command = [
        sys.executable, str(here / "vram_ballast.py"), str(gib), "--", sys.executable, __file__, str(path), "--child",
        "--depths", *depths, "--kv-type", args.kv_type, "--max-seq-len", str(args.max_seq_len),
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"error": f"exit code {done.returncode}"}
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--gib", type=float, nargs="+", default=[6, 8, 12])
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 32_768])
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--max-seq-len", type=int, default=0)
    parser.add_argument("--name", default="plan")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.models[0], args)))
        return 0
    memory: list[dict[str, Any]] = []
    speeds: list[dict[str, Any]] = []
    for path in args.models:
        for gib in args.gib:
            found, case = run(path, gib, args), {"model": path.name, "GiB": f"{gib:g}"}
            if "error" in found:
                memory.append(case | dict.fromkeys(memory[0] if memory else [], "") | {"error": found["error"]})
                continue
            memory.append(case | found["plan"] | found["memory"])
            speeds += [case | row for row in found["speed"]]
            bench.write(args.name, "Plans against the driver", memory)
            bench.write(f"{args.name}-speed", "Speed, predicted and measured", speeds)
    return 0 if all(row.get("within") for row in memory) else 1


if __name__ == "__main__":
    sys.exit(main())
