"""pagedrun against llama.cpp's own benchmarks on the CPU: same library, same threads, in one run.

scripts/test --setup-only; .venv/bin/python scripts/bench_cpu.py [MODEL.gguf] [--rounds 5] [--threads N]

prefill     512 tokens, against llama-bench pp512
decode      128 tokens one after the other, against llama-bench tg128 (which does not sample; we do)
8 parallel  128 tokens of prompt and 128 of answer each, against llama-batched-bench
overhead    step time outside llama_decode and the sampler, per step
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import time
from pathlib import Path

import bench

from pagedrun import hub
from pagedrun.config import EngineConfig
from pagedrun.load import load_service
from pagedrun.native.placement import physical_cores
from pagedrun.request import Finished, GenerationRequest
from pagedrun.runtime.store import find_runtime
from pagedrun.sampling import SamplingParams
from pagedrun.service import Service

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


def prompt(service: Service, size: int, seed: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(1000, service.vocab.n_tokens) for _ in range(size))


def finish(service: Service, *requests: GenerationRequest) -> list[Finished]:
    streams = [service.submit(r) for r in requests]
    return [next(e for e in stream if isinstance(e, Finished)) for stream in streams]


def prefill(service: Service, seed: int) -> float:
    """Prompt tokens per second."""
    (end,) = finish(service, GenerationRequest(prompt=prompt(service, 512, seed), sampling=GREEDY, max_tokens=1))
    assert end.usage.cached_tokens == 0
    return 512 / end.timings.prompt_s


def decode(service: Service, seed: int) -> float:
    """Tokens per second from the first one on."""
    (end,) = finish(service, GenerationRequest(prompt=prompt(service, 1, seed), sampling=GREEDY, max_tokens=129))
    return 128 / end.timings.decode_s


def parallel(service: Service, seed: int, count: int = 8) -> float:
    """Prompt and answer tokens of all requests per second."""
    requests = [
        GenerationRequest(prompt=prompt(service, 128, seed * 100 + n), sampling=GREEDY, max_tokens=128)
        for n in range(count)
    ]
    began = time.perf_counter()
    finish(service, *requests)
    return count * 256 / (time.perf_counter() - began)


def llama_bench(model: Path, threads: int, *test: str) -> float:
    command = [
        str(find_runtime().bin / "llama-bench"),
        "-m",
        str(model),
        "-t",
        str(threads),
        "-r",
        "2",
        "-o",
        "json",
        *test,
    ]
    rows = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return float(rows[0]["avg_ts"])


def llama_batched_bench(model: Path, threads: int) -> float:
    command = [
        str(find_runtime().bin / "llama-batched-bench"), "-m", str(model), "-t", str(threads), "-c", "4096",
        "-b", "512", "-ub", "512", "-npp", "128", "-ntg", "128", "-npl", "8", "--output-format", "jsonl",
    ]  # fmt: skip
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    row = next(json.loads(line) for line in out.splitlines() if line.startswith("{"))
    return float(row["speed"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=physical_cores())
    args = parser.parse_args()
    model = args.model or hub.fetch_default_model()
    seeds = iter(range(10_000))
    config = EngineConfig(threads=args.threads, max_seq_len=1024, gpu_layers=0)
    rows = []

    def row(case: str, figures: dict[str, list[float]]) -> None:
        ours, theirs = figures["pagedrun"], figures["llama_cpp"]
        rows.append({
            "case": case, "pagedrun tok/s": statistics.median(ours), "llama.cpp tok/s": statistics.median(theirs),
            "ratio": round(bench.ratio(ours, theirs), 3),
        })  # fmt: skip

    with load_service(model, config) as service:
        decode(service, next(seeds))
        row("prefill 512", bench.alternate(
            args.rounds, pagedrun=lambda: prefill(service, next(seeds)),
            llama_cpp=lambda: llama_bench(model, args.threads, "-p", "512", "-n", "0"),
        ))  # fmt: skip
        before = service.stats.overhead_s, service.stats.steps
        row("decode 128", bench.alternate(
            args.rounds, pagedrun=lambda: decode(service, next(seeds)),
            llama_cpp=lambda: llama_bench(model, args.threads, "-p", "0", "-n", "128"),
        ))  # fmt: skip
        overhead = (service.stats.overhead_s - before[0]) / (service.stats.steps - before[1])
    with load_service(
        model, EngineConfig(threads=args.threads, max_seq_len=512, max_num_seqs=8, gpu_layers=0)
    ) as service:
        parallel(service, next(seeds))
        before = service.stats.overhead_s, service.stats.steps
        row("8 parallel, 128 + 128", bench.alternate(
            args.rounds, pagedrun=lambda: parallel(service, next(seeds)),
            llama_cpp=lambda: llama_batched_bench(model, args.threads),
        ))  # fmt: skip
        overhead8 = (service.stats.overhead_s - before[0]) / (service.stats.steps - before[1])
    notes = [
        f"overhead per step, outside llama_decode and the sampler: {overhead * 1e3:.3f} ms with one request, "
        f"{overhead8 * 1e3:.3f} ms with eight",
        f"{model.name}, {args.threads} threads, {args.rounds} rounds in turn, medians; pagedrun samples every token "
        "(greedy), llama.cpp's benchmarks do not sample",
    ]
    bench.write("cpu", "CPU: pagedrun against llama.cpp's own benchmarks", rows, notes=notes)


if __name__ == "__main__":
    main()
