"""How soon nothing is computed any more for a client that has left: while its prompt is read, and while it is answered.

    python scripts/cancel_server.py                               SmolLM2, on the CPU
    python scripts/cancel_server.py 8b.gguf --gpu --name 8b

A live server computes `--beside` other answers meanwhile. A client asks, leaves after a while that is drawn, and notes
when; the server's watch (tests/watched_server.py) notes when the engine has ended the request, and when steps began.

    ms            from the connection's end to the request's; p50, p99 and the longest
    steps         that began in between: the one that was under way when the client left had begun before
    step ms       how long the last step took, which was under way when the client left

Exit code 1: more than one step began, or a request was not cancelled.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import bench
import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from pagedrun import hub
from tests.server_soak_runs import PATIENCE_S, Watch, watched_server

IDS = (1000, 30_000)  # tokens of any model's vocabulary
WHERE = ("reading", "answering")
SHORT = 16
FEW_MS = (1.0, 60.0)  # after the engine has the request, or the first words
WAIT_S = 30


class Bench:
    """One server. long: tokens of a prompt that takes many steps to read."""

    def __init__(self, url: str, watch: Watch, seed: int, *, long: int) -> None:
        self._url = url
        self._watch = watch
        self._rng = random.Random(seed)
        self._long = long

    async def measure(self, where: str, n: int, beside: int) -> list[dict[str, Any]]:
        """Cancel `n` requests, one after another: milliseconds and steps of each."""
        stop = asyncio.Event()
        others = [asyncio.create_task(self._goes_on(stop)) for _ in range(beside)]
        try:
            return [await self._one(where, beside) for _ in range(n)]
        finally:
            stop.set()
            await asyncio.gather(*others)

    async def _goes_on(self, stop: asyncio.Event) -> None:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            while not stop.is_set():
                body = {"prompt": self._prompt(SHORT), "max_tokens": 200, "ignore_eos": True, "stream": True}
                async with client.stream("POST", f"{self._url}/v1/completions", json=body) as answer:
                    async for _ in answer.aiter_raw():
                        if stop.is_set():
                            break

    async def _until_inside(self, beside: int) -> None:
        """The engine has the request, and has not read its prompt."""
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            while (await client.get(f"{self._url}/v1/pagedrun/stats")).json()["running"] <= beside:
                pass

    async def _one(self, where: str, beside: int) -> dict[str, Any]:
        prompt = self._prompt(self._long if where == "reading" else SHORT)
        body = {"prompt": prompt, "max_tokens": 100_000, "ignore_eos": True, "stream": True, "temperature": 0}
        host, port = self._url.removeprefix("http://").split(":")
        data = httpx.Request("POST", f"{self._url}/v1/completions", json=body)
        head = "".join(f"{name}: {value}\r\n" for name, value in data.headers.items())
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + data.content)
        await writer.drain()
        if where == "answering":
            await reader.readuntil(b"data: ")
        else:
            await self._until_inside(beside)
        await asyncio.sleep(self._rng.uniform(*FEW_MS) / 1e3)
        left = time.monotonic()
        writer.transport.abort() if self._rng.random() < 0.5 else writer.close()
        record = await self._record(prompt)
        began = [at for at in record["steps"] if at >= left]
        return {
            "ms": (record["at"] - left) * 1e3,
            "steps": len(began),
            "step ms": (record["at"] - record["steps"][-1]) * 1e3,
            "reason": record["reason"],
            "answered": len(record["tokens"]),
        }

    async def _record(self, prompt: list[int]) -> dict[str, Any]:
        """What the watch wrote of this request."""
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            for record in self._watch.more():
                if record.get("prompt") == prompt:
                    return record
            await asyncio.sleep(0.02)
        raise RuntimeError(f"the request did not end within {WAIT_S} s")

    def _prompt(self, n: int) -> list[int]:
        return [self._rng.randrange(*IDS) for _ in range(n)]


def row(where: str, beside: int, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Of one place, with so many others."""
    p50, p99, most = np.percentile([one["ms"] for one in found], (50, 99, 100))
    return {
        "left while": where,
        "others": beside,
        "requests": len(found),
        "ms p50": float(p50),
        "p99": float(p99),
        "longest": float(most),
        "steps p50": float(np.median([one["steps"] for one in found])),
        "at most": max(one["steps"] for one in found),
        "step ms p50": float(np.median([one["step ms"] for one in found])),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--gpu", action="store_true", help="all of the model on the GPU")
    parser.add_argument("--name", default="cpu")
    parser.add_argument("--requests", type=int, default=100, help="of each kind")
    parser.add_argument("--beside", type=int, nargs="*", default=[0, 4])
    parser.add_argument("--long", type=int, default=1900, help="tokens of a prompt that is being read")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    model = args.model or hub.fetch_default_model()
    more = {"--max-num-seqs": max(args.beside) + 1, "--max-seq-len": args.long + 2048, "-t": args.threads}
    arguments = [str(part) for pair in more.items() for part in pair] + ([] if args.gpu else ["--gpu-layers", "0"])
    env = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0") if args.gpu else ""}
    rows, bad = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        watched_server(model, Path(folder), *arguments, **env) as (live, watch),
    ):
        run = Bench(live.url, watch, args.seed, long=args.long)
        asyncio.run(run.measure("answering", 3, max(args.beside)))
        for beside in args.beside:
            for where in WHERE:
                found = asyncio.run(run.measure(where, args.requests, beside))
                rows.append(row(where, beside, found))
                wrong = [one for one in found if one["reason"] != "cancelled" or one["steps"] > 1]
                wrong += [one for one in found if bool(one["answered"]) != (where == "answering")]
                bad += [f"{where}, {beside} others: {one}" for one in wrong]
                print(rows[-1], file=sys.stderr, flush=True)
    notes = [f"{model.name}; prompts of {args.long:,} tokens while reading, {SHORT} else; seed {args.seed}"]
    notes += [f"wrong: {what}" for what in bad[:5]]
    bench.write(f"cancel-{args.name}", f"From a client's leaving to its request's end ({args.name})", rows, notes=notes)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
