"""pagedrun's engine against llama.cpp's own benchmarks: same library, same threads, same placement, in one run.

    .venv/bin/python scripts/bench_engine.py                                   the default model on the CPU
    .venv/bin/python scripts/bench_engine.py MODEL.gguf --gpu --name gpu-6gib  as much on the GPU as fits

    prefill     a prompt, against llama-bench pp
    decode      tokens one after the other, against llama-bench tg (which does not sample; we do)
    parallel    eight requests at once, prompt and answer, against llama-batched-bench
    overhead    step time outside llama_decode and the sampler, per step

`pagedrun setup --tools` builds llama.cpp's programs. Both sides take turns, round by round.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bench

from pagedrun import hub
from pagedrun.config import EngineConfig
from pagedrun.load import load_service
from pagedrun.native.placement import physical_cores
from pagedrun.plan.rules import VRAM_MARGIN
from pagedrun.request import Finished, GenerationRequest
from pagedrun.runtime.store import find_runtime
from pagedrun.sampling import SamplingParams
from pagedrun.service import Service

USERS_ENVIRONMENT = dict(os.environ)  # loading our library changes it, and llama.cpp's programs must not inherit that
Figures = tuple[float, ...]
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
PARALLEL, EACH = 8, 128  # requests at once; tokens of prompt and of answer


@dataclass
class Bench:
    """One model on one placement; rows and notes collect what was measured."""

    model: Path
    threads: int
    rounds: int
    gpu: bool
    prompt: int
    answer: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _seeds: Iterator[int] = field(default_factory=lambda: iter(range(10_000)))

    def single(self) -> None:
        """Prefill and decode of one request."""
        ours, theirs = self._turns(self._pagedrun_single, self._llama_bench)
        self._row(f"prefill {self.prompt}", [o[0] for o in ours], [t[0] for t in theirs])
        self._row(f"decode {self.answer}", [o[1] for o in ours], [t[1] for t in theirs])
        self._overhead("one request", [o[2] for o in ours])

    def parallel(self) -> None:
        """Eight requests at once."""
        ours, theirs = self._turns(self._pagedrun_parallel, self._llama_batched_bench)
        self._row(f"{PARALLEL} parallel, {EACH} + {EACH}", [o[0] for o in ours], [t[0] for t in theirs])
        self._overhead(f"{PARALLEL} requests", [o[1] for o in ours])

    def _turns(self, ours: Callable[[], Figures], theirs: Callable[[], Figures]) -> tuple[list[Figures], list[Figures]]:
        """A B A B ..., each loading and unloading the model, so that both have the machine to themselves."""
        figures: tuple[list[Figures], list[Figures]] = ([], [])
        for number in range(self.rounds):
            for side, measure in zip(figures, (ours, theirs), strict=True):
                side.append(measure())
                shown = ", ".join(f"{f:.4g}" for f in side[-1])
                print(f"  round {number + 1}/{self.rounds} {measure.__name__}: {shown}", file=sys.stderr)
        return figures

    def _row(self, case: str, ours: list[float], theirs: list[float]) -> None:
        self.rows.append(
            {
                "case": case,
                "pagedrun tok/s": statistics.median(ours),
                "llama.cpp tok/s": statistics.median(theirs),
                "ratio": round(bench.ratio(ours, theirs), 3),
            }
        )

    def _overhead(self, what: str, seconds: list[float]) -> None:
        milliseconds = statistics.median(seconds) * 1e3
        self.notes.append(f"{what}: {milliseconds:.3f} ms of each step outside llama_decode and the sampler")

    def _pagedrun_single(self) -> Figures:
        """(prompt tokens per second, answer tokens per second, overhead per step in seconds)"""
        with load_service(self.model, self._config(self.prompt + self.answer + 256, 1)) as service:
            # llama-bench warms up before each test and takes the mean of two runs; so do we.
            prefill = [self._prefill(service) for _ in range(3)][1:]
            self._decode(service)
            before = service.stats.overhead_s, service.stats.steps
            decode = [self._decode(service) for _ in range(2)]
            overhead = (service.stats.overhead_s - before[0]) / (service.stats.steps - before[1])
        return statistics.mean(prefill), statistics.mean(decode), overhead

    def _pagedrun_parallel(self) -> Figures:
        """(prompt and answer tokens of all requests per second, overhead per step in seconds)"""
        with load_service(self.model, self._config(2 * EACH + 256, PARALLEL)) as service:
            self._together(service, 8)
            before = service.stats.overhead_s, service.stats.steps
            began = time.perf_counter()
            self._together(service, EACH)
            took = time.perf_counter() - began
            overhead = (service.stats.overhead_s - before[0]) / (service.stats.steps - before[1])
        return PARALLEL * 2 * EACH / took, overhead

    def _config(self, seq_len: int, seqs: int) -> EngineConfig:
        return EngineConfig(
            threads=self.threads, max_seq_len=seq_len, max_num_seqs=seqs, gpu_layers=-1 if self.gpu else 0
        )

    def _tokens(self, service: Service, size: int) -> tuple[int, ...]:
        rng = random.Random(next(self._seeds))
        return tuple(rng.randrange(1000, service.vocab.n_tokens) for _ in range(size))

    def _prefill(self, service: Service) -> float:
        prompt = self._tokens(service, self.prompt)
        (end,) = finish(service, GenerationRequest(prompt=prompt, sampling=GREEDY, max_tokens=1))
        assert end.usage.cached_tokens == 0
        return self.prompt / end.timings.prompt_s

    def _decode(self, service: Service) -> float:
        prompt = self._tokens(service, 1)
        (end,) = finish(service, GenerationRequest(prompt=prompt, sampling=GREEDY, max_tokens=self.answer + 1))
        return self.answer / end.timings.decode_s

    def _together(self, service: Service, answer: int) -> None:
        requests = [
            GenerationRequest(prompt=self._tokens(service, EACH), sampling=GREEDY, max_tokens=answer)
            for _ in range(PARALLEL)
        ]
        finish(service, *requests)

    def _llama_bench(self) -> Figures:
        """(pp, tg)"""
        fit = ["-fitt", str(VRAM_MARGIN >> 20)] if self.gpu else ["-ngl", "0"]
        out = self._run(
            "llama-bench", *self._batch(), *fit, "-r", "2", "-o", "json", "-p", str(self.prompt), "-n", str(self.answer)
        )
        return tuple(float(row["avg_ts"]) for row in json.loads(out))

    def _llama_batched_bench(self) -> Figures:
        sizes = ["-c", str(PARALLEL * (2 * EACH + 256)), "-npp", str(EACH), "-ntg", str(EACH), "-npl", str(PARALLEL)]
        place = [] if self.gpu else ["-ngl", "0"]
        out = self._run("llama-batched-bench", *self._batch(), *sizes, *place, "--output-format", "jsonl")
        row = next(json.loads(line) for line in out.splitlines() if line.startswith("{"))
        return (float(row["speed"]),)

    def _batch(self) -> list[str]:
        size = str(2048 if self.gpu else 512)
        return ["-b", size, "-ub", size]

    def _run(self, tool: str, *arguments: str) -> str:
        command = [str(find_runtime().bin / tool), "-m", str(self.model), "-t", str(self.threads), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=USERS_ENVIRONMENT).stdout


def finish(service: Service, *requests: GenerationRequest) -> list[Finished]:
    """Run requests together and wait for all."""
    streams = [service.submit(r) for r in requests]
    return [next(e for e in stream if isinstance(e, Finished)) for stream in streams]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--name", default="cpu", help="of the result files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--answer", type=int, default=128)
    parser.add_argument("--no-parallel", action="store_true")
    args = parser.parse_args()
    model = args.model or hub.fetch_default_model()
    run = Bench(model, args.threads, args.rounds, args.gpu, args.prompt, args.answer)
    run.single()
    if not args.no_parallel:
        run.parallel()
    run.notes.append(
        f"{model.name}, {args.threads} threads, {args.rounds} rounds in turn, medians; pagedrun samples every token "
        "(greedy), llama.cpp's benchmarks do not sample"
    )
    bench.write(
        f"engine-{args.name}", f"pagedrun against llama.cpp's own benchmarks ({args.name})", run.rows, notes=run.notes
    )


if __name__ == "__main__":
    main()
