"""What HTTP costs: the engine alone, the same engine behind `pagedrun serve`, and llama-server of the same build.

    .venv/bin/python scripts/bench_server.py                          the default model on the CPU
    .venv/bin/python scripts/bench_server.py MODEL.gguf --gpu --name gpu

    together       answer tokens per second of eight streams, prompts of 128 tokens, answers of 128
    first token    milliseconds from request to first text, one request at a time, prompts of 32 tokens
    cancelled      milliseconds from a client's leaving until nothing is computed for it any more

All sides take turns, round by round. llama-server is there after `pagedrun setup --tools`; else it is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bench
import httpx

from pagedrun import hub
from pagedrun.config import EngineConfig
from pagedrun.load import load_service
from pagedrun.native.placement import physical_cores
from pagedrun.request import Finished, GenerationRequest, TextDelta
from pagedrun.runtime.store import find_runtime
from pagedrun.sampling import SamplingParams

USERS_ENVIRONMENT = dict(os.environ)  # loading our library changes it
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
STREAMS, PROMPT, ANSWER = 8, 128, 128
SHORT, FIRST_TOKENS = 32, 10
SEQ_LEN = 2048
_IDS = (1000, 30_000)  # tokens of any model's vocabulary

Figures = dict[str, float]


def prompts(seed: int, n: int, size: int) -> list[list[int]]:
    """Different ones, the same for each side."""
    rng = random.Random(seed)
    return [[rng.randrange(*_IDS) for _ in range(size)] for _ in range(n)]


class Bench:
    """One model on one placement."""

    def __init__(self, model: Path, threads: int, *, gpu: bool) -> None:
        self.model, self.threads, self.gpu = model, threads, gpu

    def engine(self, seed: int) -> Figures:
        """Without HTTP."""
        layers = -1 if self.gpu else 0
        config = EngineConfig(threads=self.threads, max_seq_len=SEQ_LEN, max_num_seqs=STREAMS, gpu_layers=layers)
        with load_service(self.model, config) as service:

            def ask(prompt: list[int], n: int) -> Any:
                return service.submit(GenerationRequest(prompt=tuple(prompt), sampling=GREEDY, max_tokens=n))

            for stream in [ask(p, 8) for p in prompts(seed, STREAMS, 8)]:
                list(stream)
            began = time.perf_counter()
            ends = [
                [e for e in s if isinstance(e, Finished)]
                for s in [ask(p, ANSWER) for p in prompts(seed + 1, STREAMS, PROMPT)]
            ]
            took = time.perf_counter() - began
            n_tokens = sum(end.usage.completion_tokens for (end,) in ends)
            firsts = []
            for prompt in prompts(seed + 2, FIRST_TOKENS, SHORT):
                asked = time.perf_counter()
                stream = ask(prompt, 4)
                next(e for e in stream if isinstance(e, TextDelta))
                firsts.append(time.perf_counter() - asked)
                list(stream)
        return {"together": n_tokens / took, "first token": statistics.median(firsts) * 1e3}

    def server(self, seed: int) -> Figures:
        """`pagedrun serve`."""
        more = [] if self.gpu else ["--gpu-layers", "0"]
        command = [sys.executable, "-m", "pagedrun", "serve", str(self.model), "--port", "0", *more]
        command += ["-t", str(self.threads), "--max-seq-len", str(SEQ_LEN), "--max-num-seqs", str(STREAMS)]
        with running(command, lambda log: re.search(r"listening on (\S+)/v1", log)) as url:
            figures = asyncio.run(over_http(url, seed))
            return figures | asyncio.run(cancelled(url, seed))

    def llama_server(self, seed: int) -> Figures:
        """The same load on llama.cpp's own."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        place = [] if self.gpu else ["-ngl", "0"]
        command = [str(find_runtime().bin / "llama-server"), "-m", str(self.model), "-t", str(self.threads), *place]
        command += ["--port", str(port), "-np", str(STREAMS), "-c", str(STREAMS * SEQ_LEN)]

        def listens(log: str) -> Any:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                    return re.match(r"(.*)", f"http://127.0.0.1:{port}")
            return None

        with running(command, listens) as url:
            return asyncio.run(over_http(url, seed))


@contextlib.contextmanager
def running(command: list[str], listens: Callable[[str], Any]) -> Iterator[str]:
    """A server's address while it runs."""
    with tempfile.NamedTemporaryFile("r") as log, open(log.name, "w") as out:  # noqa: PTH123
        process = subprocess.Popen(command, stdout=out, stderr=out, env=USERS_ENVIRONMENT)
        try:
            while not (found := listens(Path(log.name).read_text())):
                if process.poll() is not None:
                    raise RuntimeError(Path(log.name).read_text())
                time.sleep(0.1)
            yield found[1]
        finally:
            process.terminate()
            process.wait(60)


async def over_http(url: str, seed: int) -> Figures:
    """Both figures, through a client that reads as little as it can."""
    one_each = httpx.Limits(max_keepalive_connections=0)  # llama-server closes them
    async with httpx.AsyncClient(timeout=600, limits=one_each) as client:

        async def ask(prompt: list[int], n: int) -> tuple[float, int]:
            """Seconds to the first event with text; events with text."""
            asked, first, n_events = time.perf_counter(), 0.0, 0
            body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True}
            async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
                answer.raise_for_status()
                async for data in answer.aiter_raw():
                    first = first or time.perf_counter() - asked
                    n_events += data.count(b"data: {")
            return first, n_events

        await asyncio.gather(*(ask(p, 8) for p in prompts(seed, STREAMS, 8)))
        began = time.perf_counter()
        await asyncio.gather(*(ask(p, ANSWER) for p in prompts(seed + 1, STREAMS, PROMPT)))
        took = time.perf_counter() - began
        firsts = [(await ask(p, 4))[0] for p in prompts(seed + 2, FIRST_TOKENS, SHORT)]
    return {"together": STREAMS * ANSWER / took, "first token": statistics.median(firsts) * 1e3}


async def cancelled(url: str, seed: int) -> Figures:
    """How long it takes until a request that nobody waits for any more is out of the engine."""
    found: dict[str, list[float]] = {"cancelled, reading": [], "cancelled, answering": []}
    async with httpx.AsyncClient(timeout=60) as client:
        for name, size, after in (("cancelled, reading", SEQ_LEN - 64, 0.1), ("cancelled, answering", SHORT, 0.6)):
            for prompt in prompts(seed + 3, 5, size):
                body = {"prompt": prompt, "max_tokens": SEQ_LEN, "ignore_eos": True, "stream": True}
                asking = asyncio.ensure_future(client.post(f"{url}/v1/completions", json=body))
                await asyncio.sleep(after)
                asking.cancel()
                left = time.perf_counter()
                while (await client.get(f"{url}/v1/pagedrun/stats")).json()["running"]:
                    await asyncio.sleep(0.002)
                found[name].append((time.perf_counter() - left) * 1e3)
    return {name: statistics.median(times) for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--name", default="cpu", help="of the result files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=physical_cores())
    args = parser.parse_args()
    model = args.model or hub.fetch_default_model()
    run = Bench(model, args.threads, gpu=args.gpu)
    sides = {"engine": run.engine, "pagedrun serve": run.server}
    if (find_runtime().bin / "llama-server").exists():
        sides["llama-server"] = run.llama_server
    found: dict[str, list[Figures]] = {name: [] for name in sides}
    for number in range(args.rounds):
        for name, measure in sides.items():
            found[name].append(measure(1000 * number))
            print(f"  round {number + 1}/{args.rounds} {name}: {found[name][-1]}", file=sys.stderr)
    rows: list[dict[str, Any]] = []
    for case in found["pagedrun serve"][0]:
        row: dict[str, Any] = {"case": case}
        for name, figures in found.items():
            row[name] = round(statistics.median(f[case] for f in figures), 1) if case in figures[0] else ""
        rows.append(row)
    ratio = bench.ratio([f["together"] for f in found["pagedrun serve"]], [f["together"] for f in found["engine"]])
    notes = [
        f"{model.name}, {args.threads} threads, {args.rounds} rounds in turn, medians",
        f"together, pagedrun serve of the engine alone: {ratio:.3f}",
        "together: tokens per second; the others: milliseconds",
    ]
    bench.write(f"server-{args.name}", f"What HTTP costs ({args.name})", rows, notes=notes)


if __name__ == "__main__":
    main()
