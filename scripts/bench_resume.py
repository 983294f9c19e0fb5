"""A long conversation goes on: from RAM, from its file after a restart, or by reading all of it again.

    python scripts/vram_ballast.py 6 -- python scripts/bench_resume.py 35b.gguf --gpu --tokens 131072 --name 35b
    python scripts/bench_resume.py tiny.gguf --tokens 4096 --name tiny-cpu

    recomputed        a process that knows nothing reads the prompt; then its conversation is saved, by itself
    from RAM          in the same process a follow-up comes, after all its pages have left the device for the host
    from its file     in a new process, the model loaded, the file not in the page cache; and again, with all forgotten

The prompt is of random tokens, and the follow-up has 8 more. What is measured is the time from the request to the first
token of the answer; "beyond a step" is that less the step which every answer begins with: the same follow-up once more,
of a conversation that is on the device. The disk's own speed is measured over the same file with reads of the same size
around the page cache, by as many threads, without checksums. Greedy answers have to be the same in all ways; where they
are not, the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import bench
import numpy as np

HERE = Path(__file__).parent
MORE, ANSWER = 8, 8  # tokens of the follow-up, and of answers
ROOM = 512  # tokens of the window beyond the prompt
GB, MIB = 1e9, 1 << 20


def child(side: str, args: argparse.Namespace) -> dict[str, Any]:
    """One process. `first` computes, goes on from RAM and saves; `second` goes on from the file."""
    from pagedrun.load import load_service

    began = time.perf_counter()
    with load_service(args.model, config(args), sessions=args.folder) as service:
        loaded = time.perf_counter() - began
        row = first(service, args) if side == "first" else second(service, args)
        kv, stats = service.stats.kv, service.keeper.stats if service.keeper else None
        assert kv is not None and stats is not None, "there are no pages"
        return row | {
            "load s": loaded,
            "pages": kv.pages,
            "page MiB": kv.device.n_bytes / max(kv.device.created, 1) / MIB,
            "cold": kv.spill.cold,
            "on host": kv.host.used,
            "snapshots": kv.snapshots,
            "restored": stats.restored,
            "saved": stats.saved,
            "device": service.model.device,
        }


def config(args: argparse.Namespace) -> Any:
    """As a user would write it."""
    from pagedrun.config import EngineConfig

    return EngineConfig(
        max_seq_len=args.tokens + ROOM,
        gpu_layers=-1 if args.gpu else 0,
        gpu_memory=int(args.gib * 2**30) if args.gpu else 0,
        kv_type=args.kv_type,
        threads=args.threads,
        swap_space=16 << 30,
        cache_disk=64 << 30,
    )


def ask(service: Any, prompt: list[int]) -> tuple[float, list[int], int]:
    """Seconds to the first token, the answer, and how much of the prompt was there."""
    from pagedrun.request import Finished, GenerationRequest
    from pagedrun.sampling import SamplingParams

    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    request = GenerationRequest(prompt=tuple(prompt), sampling=sampling, max_tokens=ANSWER, logprobs=0)
    answer: list[int] = []
    for event in service.submit(request):
        if isinstance(event, Finished):
            if event.error is not None:
                raise event.error
            return event.timings.queued_s + event.timings.prompt_s, answer, event.usage.cached_tokens
        answer += [p.token for p in event.logprobs]
    raise RuntimeError("the answer did not end")


def in_engine(service: Any, work: Callable[[Any], Any]) -> Any:
    """Have something done between two steps, with the keeper; answers what it does."""
    done, found = threading.Event(), []

    def run() -> None:
        try:
            found.append(work(service.keeper))
        finally:
            done.set()

    service.call(run)
    done.wait()
    return found[0]


def to_host(keeper: Any) -> int:
    """All pages leave the device; answers how many are on the host."""
    manager = keeper.manager
    manager.demote(np.flatnonzero(manager.table.resident()))
    manager.flush()
    manager.transfers.drain()
    manager.poll()
    return int(manager.table.copied().sum())


def forget(keeper: Any) -> None:
    """Nothing rests any more."""
    while keeper.resting.forget_one(all_of_it=True):
        pass


def first(service: Any, args: argparse.Namespace) -> dict[str, Any]:
    from paged_side import tokens_of

    prompt = tokens_of(1, args.tokens)
    if service.limits.max_seq_len < args.tokens + MORE + 2 * ANSWER:
        raise SystemExit(f"a conversation can have no more than {service.limits.max_seq_len:,} tokens")
    recomputed, answer, _ = ask(service, prompt)
    began = time.perf_counter()
    while in_engine(service, lambda keeper: keeper.busy):
        time.sleep(0.02)
    saved = time.perf_counter() - began
    in_engine(service, lambda keeper: setattr(keeper, "automatic", False))
    follow_up = prompt + answer + tokens_of(2, MORE)
    from_ram, step, answers, cached, pages = [], [], [], [], 0
    for _ in range(args.rounds):
        pages = in_engine(service, to_host)
        seconds, again, n = ask(service, follow_up)
        from_ram.append(seconds)
        answers.append(again)
        cached.append(n)
        seconds, again, _ = ask(service, follow_up)
        step.append(seconds)
        answers.append(again)
    return {
        "recomputed": recomputed,
        "save s": saved,
        "from RAM": from_ram,
        "step": step,
        "cached": cached,
        "answers": answers,
        "follow-up": follow_up,
        "demoted": pages,
    }


def second(service: Any, args: argparse.Namespace) -> dict[str, Any]:
    follow_up = json.loads((args.folder / "follow-up.json").read_text())
    from_file, answers, cached, restored = [], [], [], []
    in_engine(service, lambda keeper: setattr(keeper, "automatic", False))
    for _ in range(args.rounds):
        seconds, answer, n = ask(service, follow_up)
        from_file.append(seconds)
        answers.append(answer)
        cached.append(n)
        restored.append(in_engine(service, lambda keeper: (keeper.stats.restored_bytes, keeper.stats.restored_s)))
        in_engine(service, forget)
        drop(file_in(args.folder))
    return {"from file": from_file, "answers": answers, "cached": cached, "restores": restored}


def file_in(folder: Path) -> Path:
    """The one file with the conversation."""
    (path,) = (folder / "cache").glob("*.kv")
    return path


def drop(path: Path) -> None:
    """What is in the page cache of a file goes."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def disk(path: Path) -> float:
    """Bytes a second of the disk: reads around the page cache, as many at once as restoring does."""
    from pagedrun.durable.buffers import PIECE
    from pagedrun.durable.loading import READERS
    from pagedrun.sessions import aligned

    drop(path)
    n = path.stat().st_size // PIECE
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)

    def read(part: int) -> int:
        buffer, done = aligned(PIECE), 0
        for piece in range(part, max(n, 1), READERS):
            done += os.preadv(fd, [buffer.data], piece * PIECE)
        return done

    try:
        began = time.perf_counter()
        with ThreadPoolExecutor(READERS) as pool:
            done = sum(pool.map(read, range(READERS)))
        return done / (time.perf_counter() - began)
    finally:
        os.close(fd)


def run(side: str, args: argparse.Namespace) -> dict[str, Any]:
    """A child process; its row."""
    arguments = [a for a in sys.argv[1:] if a != "--gpu"] + (["--gpu"] if args.gpu else [])
    command = [sys.executable, __file__, *arguments, "--side", side, "--folder", str(args.folder)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def rows_of(one: dict[str, Any], two: dict[str, Any], n_bytes: int, rate: float) -> list[dict[str, Any]]:
    """The table."""
    step = statistics.median(one["step"])

    def row(way: str, seconds: float, cached: int, limit: str = "-") -> dict[str, Any]:
        return {
            "": way,
            "first token s": seconds,
            "beyond a step s": max(seconds - step, 0.0),
            "tokens cached": f"{cached:,}",
            "disk's limit s": limit,
        }

    limit = f"{n_bytes / rate:.2f}"
    return [
        row("on the device", step, one["cached"][-1]),
        row("from RAM", statistics.median(one["from RAM"]), one["cached"][-1]),
        row("from its file, after a restart", two["from file"][0], two["cached"][0], limit),
        row("from its file, again", statistics.median(two["from file"]), two["cached"][-1], limit),
        row("recomputed", one["recomputed"], 0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--gib", type=float, default=6.0, help="gpu_memory")
    parser.add_argument("--tokens", type=int, default=131_072)
    parser.add_argument("--name", default="gpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to be measured; else a new one here")
    parser.add_argument("--side", choices=["first", "second"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(child(args.side, args)))
        return 0
    kept = bench.Kept(f"resume-{args.name}")
    with tempfile.TemporaryDirectory(dir=args.folder or Path.cwd(), prefix="sessions-") as name:
        args.folder = Path(name)
        found = kept.row("all", lambda: measured(args))
    one, two, n_bytes, rate = found["first"], found["second"], found["bytes"], found["rate"]
    same = len({tuple(a) for a in one["answers"] + two["answers"]}) == 1
    restored_bytes, restored_s = two["restores"][0]
    pace = restored_bytes / max(restored_s, 1e-9)
    notes = [
        f"{args.model.name} on {one['device']}, {args.tokens:,} tokens, KV {args.kv_type}",
        f"the file has {n_bytes / GB:.2f} GB; the disk reads it at {rate / GB:.2f} GB/s, without checksums",
        f"it was restored at {pace / GB:.2f} GB/s, and the save was done {one['save s']:.1f} s after the answer",
        f"{one['pages']} pages of {one['page MiB']:.3g} MiB; {one['demoted']} on the host before each row from RAM",
        f"pages that each step reads from the host: {one['cold']} in the first process, {two['cold']} in the second",
        f"greedy answers of {ANSWER} tokens: {'the same in all ways' if same else 'NOT the same'}",
        kept.note,
    ]
    rows = rows_of(one, two, n_bytes, rate)
    title = f"A conversation of {args.tokens:,} tokens goes on ({args.name})"
    bench.write(f"resume-{args.name}", title, rows, notes=notes)
    return 0 if same else 1


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """Everything: both processes, and the disk between them."""
    one = run("first", args)
    (args.folder / "follow-up.json").write_text(json.dumps(one.pop("follow-up")))
    path = file_in(args.folder)
    rate = disk(path)
    drop(path)
    return {"first": one, "second": run("second", args), "bytes": path.stat().st_size, "rate": rate}


if __name__ == "__main__":
    sys.exit(main())
