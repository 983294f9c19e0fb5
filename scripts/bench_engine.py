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
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bench

from pagedrun import hub
from pagedrun.config import EngineConfig
from pagedrun.load import load_service
from pagedrun.native.placement import VRAM_MARGIN, physical_cores
from pagedrun.request import Finished, GenerationRequest
from pagedrun.runtime.store import find_runtime
from pagedrun.sampling import SamplingParams
from pagedrun.service import Service

USERS_ENVIRONMENT = dict(os.environ)  # loading our library changes it, and llama.cpp's programs must not inherit that
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
        longest = self.prompt + self.answer + 256
        with load_service(self.model, self._config(longest, 1)) as service:
            self._decode(service)
            self._row(
                f"prefill {self.prompt}",
                lambda: self._prefill(service),
                lambda: self._llama_bench("-p", str(self.prompt), "-n", "0"),
            )
            with self._overhead(service, "one request"):
                self._row(
                    f"decode {self.answer}",
                    lambda: self._decode(service),
                    lambda: self._llama_bench("-p", "0", "-n", str(self.answer)),
                )

    def parallel(self) -> None:
        """Eight requests at once."""
        with load_service(self.model, self._config(2 * EACH + 256, PARALLEL)) as service:
            self._parallel(service)
            with self._overhead(service, f"{PARALLEL} requests"):
                self._row(
                    f"{PARALLEL} parallel, {EACH} + {EACH}", lambda: self._parallel(service), self._llama_batched_bench
                )

    def _row(self, case: str, ours: Callable[[], float], theirs: Callable[[], float]) -> None:
        figures = bench.alternate(self.rounds, pagedrun=ours, llama_cpp=theirs)
        row = {
            "case": case,
            "pagedrun tok/s": statistics.median(figures["pagedrun"]),
            "llama.cpp tok/s": statistics.median(figures["llama_cpp"]),
            "ratio": round(bench.ratio(figures["pagedrun"], figures["llama_cpp"]), 3),
        }
        self.rows.append(row)

    def _overhead(self, service: Service, what: str) -> _Overhead:
        return _Overhead(service, what, self.notes)

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

    def _parallel(self, service: Service) -> float:
        requests = [
            GenerationRequest(prompt=self._tokens(service, EACH), sampling=GREEDY, max_tokens=EACH)
            for _ in range(PARALLEL)
        ]
        began = time.perf_counter()
        finish(service, *requests)
        return PARALLEL * 2 * EACH / (time.perf_counter() - began)

    def _llama_bench(self, *test: str) -> float:
        batch = str(2048 if self.gpu else 512)
        fit = ["-fitt", str(VRAM_MARGIN >> 20)] if self.gpu else ["-ngl", "0"]
        rows = json.loads(self._run("llama-bench", "-r", "2", "-o", "json", "-b", batch, "-ub", batch, *fit, *test))
        return float(rows[0]["avg_ts"])

    def _llama_batched_bench(self) -> float:
        batch = str(2048 if self.gpu else 512)
        sizes = ["-c", str(PARALLEL * (2 * EACH + 256)), "-npp", str(EACH), "-ntg", str(EACH), "-npl", str(PARALLEL)]
        place = [] if self.gpu else ["-ngl", "0"]
        out = self._run("llama-batched-bench", *sizes, "-b", batch, "-ub", batch, *place, "--output-format", "jsonl")
        row = next(json.loads(line) for line in out.splitlines() if line.startswith("{"))
        return float(row["speed"])

    def _run(self, tool: str, *arguments: str) -> str:
        command = [str(find_runtime().bin / tool), "-m", str(self.model), "-t", str(self.threads), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=USERS_ENVIRONMENT).stdout


class _Overhead:
    """Adds a note: the engine's own time per step while the block runs."""

    def __init__(self, service: Service, what: str, notes: list[str]) -> None:
        self._stats, self._what, self._notes = service.stats, what, notes

    def __enter__(self) -> None:
        self._before = self._stats.overhead_s, self._stats.steps

    def __exit__(self, *_: object) -> None:
        overhead = (self._stats.overhead_s - self._before[0]) / (self._stats.steps - self._before[1])
        self._notes.append(
            f"{self._what}: {overhead * 1e3:.3f} ms of each step are spent outside llama_decode and the sampler"
        )


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
