"""How long running answers wait for their next token while a long prompt is read, and what that costs the prompt.

    python scripts/vram_ballast.py 6 -- python scripts/bench_stall.py 35b.gguf --gpu --prompt 16384 --name 35b
    python scripts/bench_stall.py --prompt 2048 --window 4096 --name cpu                         SmolLM2, on the CPU

Some answers run. Then a long prompt comes, with other tokens each time; when its first token is there, it ends.

    max_stall      milliseconds that answers should wait at most; "none": prompts are read in whole batches, as by
                   engines that do not look at who is waiting
    alone          gap between two tokens of an answer before the prompt comes, median
    gap            the same while it is read: median, 99th percentile, the longest; in ms
    beyond         share of these gaps that are longer than max_stall
    chunk          tokens that a step reads at the end
    prompt         from the request to its first token, s; times: of that with nobody else running

The settings take turns, and rows are of all rounds together. The exit code is 1 if, where chunks
are smaller than a batch, the 99th percentile is not shorter. Where a step has a fixed cost above the bound (experts
that are copied to the GPU), smaller chunks would not help, and are not used.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import bench
from paged_side import tokens_of

RUNNING = 4
SHORT = 64  # tokens of the prompts of what runs
BEFORE = 24  # tokens of each before the long prompt comes


class Answer:
    """One that runs, with the moments of its tokens."""

    def __init__(self, service: Any, prompt: list[int], n: int) -> None:
        from pagedrun.request import Finished, GenerationRequest
        from pagedrun.sampling import SamplingParams

        self.came: list[float] = []
        self.ended, self._enough = threading.Event(), threading.Event()
        self._began = time.perf_counter()

        def sink(event: Any) -> None:
            if isinstance(event, Finished):
                self.error = event.error
                self.ended.set()
            else:
                self.came += [time.perf_counter()] * len(event.logprobs)
            if len(self.came) >= BEFORE or self.ended.is_set():
                self._enough.set()

        sampling = SamplingParams(temperature=0.0, ignore_eos=True)
        request = GenerationRequest(prompt=tuple(prompt), sampling=sampling, max_tokens=n, logprobs=0)
        self.stream = service.submit(request, sink)

    def flows(self) -> None:
        """Wait until some tokens are there."""
        self._enough.wait()

    def stop(self) -> None:
        """It is not needed any more."""
        self.stream.cancel()
        self.ended.wait()
        if self.error is not None:
            raise self.error

    def first_s(self) -> float:
        """Wait for its end; seconds until its first token."""
        self.ended.wait()
        if self.error is not None:
            raise self.error
        return self.came[0] - self._began


def measure(service: Any, stall: float | None, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One prompt among answers."""
    scheduler = service._engine._scheduler

    def set_it() -> None:
        scheduler.chunks.fixed = scheduler.chunks.most if stall is None else 0
        scheduler.chunks.max_stall = (stall or 0) / 1000

    service.call(set_it)
    running = [Answer(service, tokens_of(seed * 100 + i, SHORT), args.window - SHORT - 1) for i in range(args.running)]
    for answer in running:
        answer.flows()
    began = time.perf_counter()
    prompt = Answer(service, tokens_of(seed * 100 + 99, args.prompt), 1)
    seconds = prompt.first_s()
    ended = time.perf_counter()
    chunk = scheduler.chunks.size
    for answer in running:
        answer.stop()
    alone, gaps = [], []
    for answer in running:
        for a, b in zip(answer.came[4:], answer.came[5:], strict=False):
            if b <= began:
                alone.append(b - a)
            elif b <= ended:
                gaps.append(b - a)
    return {"alone": alone, "gaps": gaps, "seconds": seconds, "chunk": chunk}


def row(stall: float | None, found: list[dict[str, Any]], alone_s: float) -> dict[str, Any]:
    """All rounds of one setting."""
    gaps = sorted(g * 1000 for f in found for g in f["gaps"])
    seconds = statistics.median(f["seconds"] for f in found)
    return {
        "max_stall ms": "none" if stall is None else round(stall),
        "alone ms": 1000 * statistics.median(g for f in found for g in f["alone"]),
        "gaps": len(gaps),
        "median ms": statistics.median(gaps),
        "99% ms": gaps[int(len(gaps) * 0.99)],
        "longest ms": gaps[-1],
        "beyond": "-" if stall is None else f"{sum(g > stall for g in gaps) / len(gaps):.1%}",
        "chunk": round(statistics.median(f["chunk"] for f in found)),
        "prompt s": seconds,
        "times": seconds / alone_s,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--name", default="cpu")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--window", type=int, default=0, help="tokens; 0: twice the prompt")
    parser.add_argument("--running", type=int, default=RUNNING)
    parser.add_argument(
        "--stalls", default="", help="milliseconds, e.g. 50,100,250; those around the default otherwise"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    args.window = args.window or 2 * args.prompt
    from pagedrun import hub
    from pagedrun.config import EngineConfig
    from pagedrun.load import load_service

    path = args.model or hub.fetch_default_model()
    given = args.stalls or ("50,100,250" if args.gpu else "100,250,1000")
    stalls: list[float | None] = [None, *(float(s) for s in given.split(","))]
    config = EngineConfig(
        max_seq_len=args.window, max_num_seqs=args.running + 1, gpu_layers=-1 if args.gpu else 0, threads=args.threads,
        cache_disk=0,
    )  # fmt: skip
    found: dict[float | None, list[dict[str, Any]]] = {stall: [] for stall in stalls}
    with load_service(path, config) as service:
        batch = service.limits.max_batch_tokens
        Answer(service, tokens_of(1, args.prompt // 4), 4).first_s()  # what a first time costs
        alone = []
        for i in range(args.rounds):
            alone.append(Answer(service, tokens_of(i * 10 + 7, args.prompt), 1).first_s())
            for j, stall in enumerate(stalls):
                found[stall].append(measure(service, stall, args, 1000 + i * 10 + j))
                print(f"round {i + 1}: {row(stall, found[stall][-1:], alone[-1])}", file=sys.stderr, flush=True)
    alone_s = statistics.median(alone)
    rows = [row(stall, found[stall], alone_s) for stall in stalls]
    notes = [
        f"{path.name}, {args.running} answers run, a prompt of {args.prompt:,} tokens comes; {args.rounds} rounds",
        f"read alone it takes {alone_s:.3g} s; batches of {batch:,} tokens",
    ]
    bench.write(f"stall-{args.name}", f"Answers while a long prompt is read ({args.name})", rows, notes=notes)
    return int(any(r["99% ms"] > rows[0]["99% ms"] for r in rows[1:] if r["chunk"] < batch))


if __name__ == "__main__":
    sys.exit(main())
