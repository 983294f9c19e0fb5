"""What HTTP costs: the engine alone, the same engine behind `pagedrun serve`, and llama-server of the same build.

    python scripts/bench_server.py                                SmolLM2, on the CPU
    python scripts/bench_server.py 8b.gguf --gpu --gpu-memory 16GiB --name 8b

    together      answer tokens per second of eight streams, prompts of 128 tokens, answers of 512. Through HTTP the
                  prompts come one after another, so that the first answer begins while the others' prompts are read:
                  with short answers that, and not the streaming, would be what is measured
    first token   milliseconds from request to first text, one request at a time, prompts of 32 tokens, each on a
                  connection of its own

All three are loaded at once (--gpu-memory has to leave room for that) and take turns, round by round, in an order that
turns round; ratios and differences are medians of those within a round. A client reads as little of a stream as it can.
llama-server is there after `pagedrun setup --tools`; else it is left out.

Exit code 1: through HTTP it is less than 0.97 of the engine alone, or the first token comes 5 ms later or more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
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
from pagedrun.config import EngineConfig, n_bytes
from pagedrun.load import load_service
from pagedrun.native.placement import physical_cores
from pagedrun.request import Finished, GenerationRequest, TextDelta
from pagedrun.runtime.store import find_runtime
from pagedrun.sampling import SamplingParams
from pagedrun.service import Service

USERS_ENVIRONMENT = dict(os.environ)  # loading our library changes it
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
STREAMS, PROMPT, ANSWER = 8, 128, 512
SHORT, FIRST_TOKENS = 32, 20
SEQ_LEN = 2048
FLOOR, ADDED_MS = 0.97, 5.0
PATIENCE_S = 600
_IDS = (1000, 30_000)  # tokens of any model's vocabulary

Figures = dict[str, float]
Measure = Callable[[int], Figures]


def prompts(seed: int, n: int, size: int) -> list[list[int]]:
    """Different ones, the same for each side."""
    rng = random.Random(seed)
    return [[rng.randrange(*_IDS) for _ in range(size)] for _ in range(n)]


class Bench:
    """One model on one placement."""

    def __init__(self, model: Path, args: argparse.Namespace) -> None:
        self.model, self.threads, self.gpu, self.gpu_memory = model, args.threads, args.gpu, args.gpu_memory

    @contextlib.contextmanager
    def engine(self) -> Iterator[Measure]:
        """Without HTTP."""
        config = EngineConfig(
            threads=self.threads,
            max_seq_len=SEQ_LEN,
            max_num_seqs=STREAMS,
            gpu_layers=-1 if self.gpu else 0,
            gpu_memory=n_bytes(self.gpu_memory, "--gpu-memory"),
        )
        with load_service(self.model, config) as service:
            yield lambda seed: _alone(service, seed)

    @contextlib.contextmanager
    def server(self) -> Iterator[Measure]:
        """`pagedrun serve`."""
        more = [] if self.gpu else ["--gpu-layers", "0"]
        more += ["--gpu-memory", self.gpu_memory] if self.gpu_memory != "0" else []
        command = [sys.executable, "-m", "pagedrun", "serve", str(self.model), "--port", "0", *more]
        command += ["-t", str(self.threads), "--max-seq-len", str(SEQ_LEN), "--max-num-seqs", str(STREAMS)]
        with running(command, lambda log: re.search(r"listening on (\S+)/v1", log)) as url:
            yield lambda seed: asyncio.run(over_http(url, seed))

    @contextlib.contextmanager
    def llama_server(self) -> Iterator[Measure]:
        """The same load on llama.cpp's own."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        place = ["-ngl", "999"] if self.gpu else ["-ngl", "0"]
        command = [str(find_runtime().bin / "llama-server"), "-m", str(self.model), "-t", str(self.threads), *place]
        command += ["--port", str(port), "-np", str(STREAMS), "-c", str(STREAMS * SEQ_LEN), "--no-webui"]

        def listens(log: str) -> Any:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                    return re.match(r"(.*)", f"http://127.0.0.1:{port}")
            return None

        with running(command, listens) as url:
            yield lambda seed: asyncio.run(over_http(url, seed))


def _alone(service: Service, seed: int) -> Figures:
    """Both figures of the engine."""

    def ask(prompt: list[int], n: int) -> Any:
        return service.submit(GenerationRequest(prompt=tuple(prompt), sampling=GREEDY, max_tokens=n))

    for stream in [ask(p, 8) for p in prompts(seed, STREAMS, 8)]:
        list(stream)
    began = time.perf_counter()
    streams = [ask(p, ANSWER) for p in prompts(seed + 1, STREAMS, PROMPT)]
    ends = [next(e for e in s if isinstance(e, Finished)) for s in streams]
    took = time.perf_counter() - began
    n_tokens = sum(end.usage.completion_tokens for end in ends)
    firsts = []
    for prompt in prompts(seed + 2, FIRST_TOKENS, SHORT):
        asked = time.perf_counter()
        stream = ask(prompt, 4)
        next(e for e in stream if isinstance(e, TextDelta))
        firsts.append(time.perf_counter() - asked)
        list(stream)
    return {"together": n_tokens / took, "first token": statistics.median(firsts) * 1e3}


async def over_http(url: str, seed: int) -> Figures:
    """Both figures of a server."""
    await asyncio.gather(*(ask(url, p, 8) for p in prompts(seed, STREAMS, 8)))
    began = time.perf_counter()
    found = await asyncio.gather(*(ask(url, p, ANSWER) for p in prompts(seed + 1, STREAMS, PROMPT)))
    took = time.perf_counter() - began
    firsts = [(await ask(url, p, 4))[0] for p in prompts(seed + 2, FIRST_TOKENS, SHORT)]
    return {"together": sum(n for _, n in found) / took, "first token": statistics.median(firsts) * 1e3}


async def ask(url: str, prompt: list[int], n: int) -> tuple[float, int]:
    """Seconds to the first event, and tokens of the answer, as the server says at its end."""
    asked, first = time.perf_counter(), 0.0
    host, port = url.removeprefix("http://").split(":")
    body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True}
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode() + data)
    seen, last = b"", b""
    while more := await asyncio.wait_for(reader.read(1 << 16), PATIENCE_S):
        if not first:
            seen += more
            first = time.perf_counter() - asked if b"data: {" in seen else 0.0
        last = (last + more)[-4000:]
    writer.close()
    found = re.search(rb'"predicted_n":\s*(\d+)', last)
    if found is None:
        raise RuntimeError(f"no answer: {(seen + last)[-500:]!r}")
    return first, int(found[1])


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


def rows(found: dict[str, list[Figures]]) -> list[dict[str, Any]]:
    """A row for each side: medians, and how it compares with the engine alone within the rounds."""
    made = []
    alone = found["engine"]
    for name, figures in found.items():
        pairs = list(zip(figures, alone, strict=True))
        made.append(
            {
                "": name,
                "together tok/s": statistics.median(f["together"] for f in figures),
                "of the engine": round(statistics.median(f["together"] / a["together"] for f, a in pairs), 3),
                "first token ms": round(statistics.median(f["first token"] for f in figures), 2),
                "added ms": round(statistics.median(f["first token"] - a["first token"] for f, a in pairs), 2),
            }
        )
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--gpu", action="store_true", help="as much of the model on the GPU as fits")
    parser.add_argument("--gpu-memory", default="0", help="of each of pagedrun's two; 0: all that is free")
    parser.add_argument("--name", default="cpu", help="of the result files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=physical_cores())
    args = parser.parse_args()
    model = args.model or hub.fetch_default_model()
    run = Bench(model, args)
    sides = {"engine": run.engine, "pagedrun serve": run.server}
    if (find_runtime().bin / "llama-server").exists():
        sides["llama-server"] = run.llama_server
    found: dict[str, list[Figures]] = {name: [] for name in sides}
    with contextlib.ExitStack() as stack:
        opened = {name: stack.enter_context(side()) for name, side in sides.items()}
        for measure in opened.values():
            measure(999_000)  # warm
        for number in range(args.rounds):
            for name in list(opened)[:: 1 if number % 2 == 0 else -1]:
                found[name].append(opened[name](1000 * number))
                print(f"  round {number + 1}/{args.rounds} {name}: {found[name][-1]}", file=sys.stderr)
    table = rows(found)
    ours = next(row for row in table if row[""] == "pagedrun serve")
    below = [f"{ours['of the engine']} of the engine alone"] if ours["of the engine"] < FLOOR else []
    below += [f"the first token comes {ours['added ms']} ms later"] if ours["added ms"] >= ADDED_MS else []
    notes = [
        f"{model.name}, {args.threads} threads, {args.rounds} rounds in turn, medians; {STREAMS} streams, prompts of "
        f"{PROMPT} tokens, answers of {ANSWER}; first token: of {FIRST_TOKENS} prompts of {SHORT} in each round",
        *(f"below the floor: {what}" for what in below),
    ]
    bench.write(f"server-{args.name}", f"What HTTP costs ({args.name})", table, notes=notes, raw=found)
    return int(bool(below))


if __name__ == "__main__":
    sys.exit(main())
