"""Does the context stay inside gpu_memory, by the driver's own figures? Of the engine as `pagedrun` opens it.

    python scripts/vram_budget.py MODEL.gguf --gpu --name 35b \\
        --case 1,262144,f16,1GiB,2048 --case 8,131072,q8_0,4GiB,2048      slots, window, kv_type, gpu_memory, batch

Each case runs in a process of its own. One conversation grows until there is no memory for a longer one, the others
then decode beside it, and what is in use is compared with what the weights had left:

    driver | buffers | pages | beside |
           -- gpu_memory --

    buffers   compute buffers, reserved for the longest conversation in all slots, and recurrent states
    pages     that exist
    beside    not counted: code of kernels, what cuBLAS and the CUDA back end take for a batch. llama.cpp takes the same
              without pages: a row for each batch size measures it, with `paging` off. It must not grow with the context

The driver may say gpu_memory, as much beside as there is without pages, and 32 MiB. Swap space is held against the RAM
that belongs to the process alone. Without --gpu the same in RAM, to try the script.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import bench
from paged_side import tokens_of

from pagedrun.config import EngineConfig, n_bytes
from pagedrun.errors import ContextLengthError
from pagedrun.load import load_service
from pagedrun.native.library import load
from pagedrun.request import Finished, GenerationRequest, TextDelta
from pagedrun.sampling import SamplingParams
from pagedrun.service import Service, Stream

MIB = 1 << 20
ROUNDING = 32 * MIB  # the driver hands memory out in pieces of 2 MiB
PARTS = (1 / 8, 1 / 4, 1 / 2, 3 / 4)  # of the longest conversation
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
RESULT = "result: "


@dataclass(frozen=True)
class Case:
    """What a context is opened with; gpu_memory "": without pages."""

    slots: int
    window: int
    kv_type: str
    gpu_memory: str
    batch: int

    @classmethod
    def parse(cls, text: str) -> Case:
        """slots,window,kv_type,gpu_memory,batch"""
        slots, window, kv_type, memory, batch = text.split(",")
        return cls(int(slots), int(window), kv_type, memory, int(batch))

    def __str__(self) -> str:
        return ",".join(map(str, (self.slots, self.window, self.kv_type, self.gpu_memory, self.batch)))

    @property
    def limit(self) -> int:
        """Bytes of gpu_memory."""
        return n_bytes(self.gpu_memory, "gpu_memory") if self.gpu_memory else 0

    def config(self, *, gpu: bool, swap: str) -> EngineConfig:
        """As a user would write it."""
        return EngineConfig(
            max_num_seqs=self.slots,
            max_seq_len=self.window,
            kv_type=self.kv_type,
            gpu_memory=self.limit,
            max_batch_tokens=self.batch,
            paging="on" if self.gpu_memory else "off",
            swap_space=n_bytes(swap, "swap_space"),
            gpu_layers=999 if gpu else 0,
        )


class Watch:
    """What is in use since the weights are there."""

    def __init__(self, *, gpu: bool) -> None:
        self.gpu = gpu
        self.start = self.weights = bench.in_use(gpu=gpu)
        self.ram = bench.own_ram()
        self.rows: list[dict[str, Any]] = []

    def loading(self, done: int, total: int) -> None:
        """For load_service: the last call comes when all weights are where they belong."""
        if done >= total:
            self.weights = bench.in_use(gpu=self.gpu)
            self.ram = bench.own_ram()

    def note(self, what: str, tokens: int) -> None:
        """A moment."""
        grown = bench.in_use(gpu=self.gpu) - self.weights
        self.rows.append({"at": what, "tokens": tokens, "grown": grown, "ram": bench.own_ram() - self.ram})


def ask(service: Service, n_tokens: int, answer: int, seed: int = 1) -> Stream:
    """A request; conversations of one seed begin alike."""
    prompt = tuple(tokens_of(seed, n_tokens))
    return service.submit(GenerationRequest(prompt=prompt, sampling=GREEDY, max_tokens=answer))


def done(stream: Stream) -> Finished:
    """Wait for the end. Raises what the request failed with."""
    end = next(e for e in stream if isinstance(e, Finished))
    if end.error is not None:
        raise end.error
    return end


def grow(service: Service, case: Case, watch: Watch) -> int:
    """One conversation as long as there is memory for, and then all slots at once. The longest prompt's tokens."""
    longest = service.limits.max_seq_len
    state = service.stats
    for part in PARTS:
        n = max(int(longest * part), 16)
        done(ask(service, n, 4))
        note(watch, f"{part:g} of the longest", n, state)
    short = 64
    n = max(longest - case.slots * 512, longest // 2) if case.slots > 1 else longest - 8
    stream = ask(service, n, 8 + 4 * short if case.slots > 1 else 8)
    first = next(e for e in stream if isinstance(e, (TextDelta, Finished)))  # it has been read
    if isinstance(first, Finished):
        raise first.error or RuntimeError("the longest conversation ended at once")
    others = [ask(service, 100, short, seed) for seed in range(2, case.slots + 1)]
    for other in others:
        done(other)
    done(stream)
    note(watch, f"the longest, and {len(others)} beside it" if others else "the longest", n, state)
    try:
        ask(service, longest + 1, 1)
    except ContextLengthError:
        return longest
    raise RuntimeError(f"{longest + 1:,} tokens should have been refused")


def note(watch: Watch, what: str, tokens: int, stats: Any) -> None:
    """A moment, with what the engine says it uses."""
    watch.note(what, tokens)
    kv = stats.kv
    watch.rows[-1] |= {
        "buffers": kv.buffer_bytes if kv else of_llama_cpp(watch.gpu),
        "pages": kv.device.n_bytes if kv else 0,
        "host_pages": kv.host.n_bytes if kv else 0,
        "snapshots": kv.snapshots if kv else 0,
        "snapshot_bytes": kv.snapshot_bytes if kv else 0,
    }


def of_llama_cpp(gpu: bool) -> int:
    """Bytes on the device of a context without pages, as llama.cpp logs them."""
    device = r"CUDA\d+" if gpu else "CPU"
    sizes = re.findall(rf"{device} +(?:output|KV|RS|compute) buffer size = +([\d.]+) MiB", load().log.text())
    return round(MIB * sum(map(float, sizes)))


def measure(model: Path, case: Case, *, gpu: bool, swap: str) -> dict[str, Any]:
    """One case, in this process."""
    watch = Watch(gpu=gpu)
    with load_service(model, case.config(gpu=gpu, swap=swap), on_progress=watch.loading) as service:
        watch.note("opened", 0)
        done(ask(service, min(case.batch, service.limits.max_seq_len // 2), 4, seed=0))
        done(ask(service, min(case.batch, service.limits.max_seq_len // 2) + 4, 4, seed=99))
        note(watch, "a batch", case.batch, service.stats)
        watch.rows[0] |= {"buffers": watch.rows[1]["buffers"], "pages": 0}
        longest = grow(service, case, watch) if case.gpu_memory else service.limits.max_seq_len
    return {"weights": watch.weights - watch.start, "longest": longest, "rows": watch.rows}


def run(model: Path, case: Case, *, gpu: bool, swap: str) -> dict[str, Any] | None:
    """One case, in a process of its own; None when it failed, which is said."""
    command = [sys.executable, __file__, str(model), "--one", str(case), "--swap-space", swap, *(["--gpu"] * gpu)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    results = [line for line in found.stdout.splitlines() if line.startswith(RESULT)]
    if not results:
        print(f"{case} failed:\n{found.stderr[-2000:]}", file=sys.stderr, flush=True)
        return None
    print(f"{case}: {results[0]}", file=sys.stderr, flush=True)
    answer: dict[str, Any] = json.loads(results[0].removeprefix(RESULT))
    return answer


def beside(row: dict[str, Any]) -> int:
    """Bytes that nobody counts."""
    return int(row["grown"] - row["buffers"] - row["pages"])


def table(case: Case, found: dict[str, Any], allowed: int) -> list[dict[str, Any]]:
    """Its rows. allowed: bytes beside gpu_memory."""
    rows = []
    for row in found["rows"]:
        inside = row["grown"] <= case.limit + allowed + ROUNDING
        rows.append(
            {
                "slots x window": f"{case.slots} x {case.window:,}",
                "kv_type": case.kv_type,
                "batch": f"{case.batch:,}",
                "gpu_memory": case.gpu_memory or "no pages",
                "": row["at"],
                "tokens": f"{row['tokens']:,}",
                "driver MiB": row["grown"] / MIB,
                "buffers MiB": row["buffers"] / MIB,
                "pages MiB": row["pages"] / MIB,
                "beside MiB": beside(row) / MIB,
                "inside": ("yes" if inside else "NO") if case.gpu_memory else "-",
            }
        )
    return rows


def swap_note(case: Case, found: dict[str, Any], swap: str) -> str:
    """Swap space against RAM, both since the first batch."""
    first, last = found["rows"][1], found["rows"][-1]
    taken = [row["host_pages"] + row["snapshot_bytes"] for row in (first, last)]
    grown, ram = (n / MIB for n in (taken[1] - taken[0], last["ram"] - first["ram"]))
    over = "" if taken[1] <= n_bytes(swap, "swap_space") else ", which is TOO MUCH"
    return (
        f"{case.slots} x {case.window:,}, {case.kv_type}, batch {case.batch:,}: longest conversation "
        f"{found['longest']:,} tokens, one more was refused; swap_space {swap}, in which {last['snapshots']} snapshots "
        f"and pages took {taken[1] / MIB:,.0f} MiB{over}; since the first batch they grew by "
        f"{grown:,.0f} MiB, and the RAM of the process by {ram:,.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--case", action="append", default=[], help="slots,window,kv_type,gpu_memory,batch")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--swap-space", default="1GiB")
    parser.add_argument("--name", default="cpu")
    args = parser.parse_args()
    if args.one:
        found = measure(args.model, Case.parse(args.one), gpu=args.gpu, swap=args.swap_space)
        print(RESULT + json.dumps(found), flush=True)
        return
    cases = [Case.parse(text) for text in args.case]
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    allowed: dict[int, int] = {}
    for batch in dict.fromkeys(case.batch for case in cases):
        plain = Case(1, 8192, "f16", "", batch)
        if without := run(args.model, plain, gpu=args.gpu, swap=args.swap_space):
            allowed[batch] = beside(without["rows"][-1])
            rows += table(plain, without, 0)
    record = []
    for case in cases:
        if result := run(args.model, case, gpu=args.gpu, swap=args.swap_space):
            rows += table(case, result, allowed.get(case.batch, 0))
            notes.append(swap_note(case, result, args.swap_space))
            record.append({"case": asdict(case), **result})
    notes.append(
        f"{args.model.name}; MiB since the weights were there; beside: code of kernels, what cuBLAS and the CUDA back "
        "end take for a batch; inside: not more than gpu_memory, what is beside without pages, and 32 MiB"
    )
    bench.write(f"budget-{args.name}", f"A context inside gpu_memory ({args.name})", rows, notes=notes, cases=record)
    if len(record) < len(cases) or any(row["inside"] == "NO" for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
