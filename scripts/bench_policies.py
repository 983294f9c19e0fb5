"""Conversations that take turns, and more of them than fit: which pages leave, and which come back ahead of time.

    python scripts/bench_policies.py                                   the default model, on the CPU
    python scripts/bench_policies.py 8b.gguf --gpu --prompt 4000 --name 8b

The whole engine answers a trace that is drawn from a seed: some conversations are popular and most are not, some begin
alike, and each turn goes on from the one before. Several turns are asked for at once; when all are answered, the next.

    of the pages    how many of the pages that the trace needs there are frames of the device for; the rest fits RAM,
                    or a fourth of it, and the rest of that a file
    hit rate        of the pages of conversations that are bound, those that are on the device at that moment, arrived
    moved           pages that were copied between the device and RAM; from the disk and to it
    again           tokens that had been computed before, and had to be computed once more
    pages s         seconds of the engine's thread for pages: deciding, and waiting until they are there
    attention s     seconds that attention waited for pages in RAM (on a GPU)
    first token     mean seconds until a request's first token, from asking for it

Every row that is done is kept in results/policies-NAME.rows.json, and a further run goes on with the next.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench
from paged_side import Model
from policies_side import AT_ONCE, Frames, Lasting, Pages, Timed, Trace, words

from pagedrun import hub
from pagedrun.engine import Engine
from pagedrun.kv import POLICIES, Budget, DiskSpace, SpillSettings
from pagedrun.native.door import Door
from pagedrun.native.frames import Staging
from pagedrun.native.library import load
from pagedrun.native.paging import open_paged
from pagedrun.request import Finished, GenerationRequest, TextDelta
from pagedrun.sampling import SamplingParams
from pagedrun.service import Service, Stream
from pagedrun.slots import PagedSettings
from pagedrun.step import RunnerLimits

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
MODES = ("off", "sequential", "associative", "hybrid")
SHARES = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Way:
    """What differs between rows. share: of the trace's pages on the device; 0: all. disk: less RAM, and a file."""

    share: float
    prefetch: str
    policy: str
    disk: bool = False

    def __str__(self) -> str:
        return f"{self.share:.0%} {self.prefetch} {self.policy}{' disk' if self.disk else ''}"


class Bench:
    """One model and its frames, for all rows."""

    def __init__(self, args: argparse.Namespace, trace: Trace) -> None:
        self.trace = trace
        batch = 2048 if args.gpu else 512
        model = args.model or hub.fetch_default_model()
        self.model = Model(model, gpu=args.gpu, kv_types=("f16", "f16"), batch=batch, threads=args.threads)
        n_slots, length = AT_ONCE, trace.longest + 64
        self.model.placement.set_seq_len(length, n_slots)
        layout = self.model.layout(args.page_size)
        params = self.model.placement.context_params
        context, frames = open_paged(self.model.native, params, self.model.door, layout, n_kv_reserve=0)
        if frames is None:
            raise RuntimeError("this model's KV cache cannot be paged")
        if args.gpu:
            frames.staging(Staging(timing=True))
        self.frames = frames
        self.limits = RunnerLimits(n_slots, length, batch)
        door = Door(load().common)
        can_rewind = self.model.can_rewind
        self.runner = Lasting(self.model.native, context, door, self.limits, can_rewind=can_rewind, frames=frames)

    def run(self, way: Way, n_pages: int) -> dict[str, Any]:
        """The trace, from nothing."""
        g, store = self.frames.geometry, Frames(self.frames)
        n_pages = n_pages or g.n_pages * len(self.trace.begins)
        n_host = n_pages // 4 if way.disk else n_pages
        manager = Pages(
            g,
            store,
            gpu_memory=Budget(round(n_pages * (way.share or 1)) * g.frame_bytes),
            swap_space=Budget(n_host * g.frame_bytes),
            policy=way.policy,
            spill=SpillSettings(mode="auto", prefetch=way.prefetch, step_tokens=self.limits.max_batch_tokens),
            disk=DiskSpace(Path(tempfile.gettempdir()), n_pages * g.frame_bytes) if way.disk else None,
        )
        settings = PagedSettings(snapshot_interval=2048, max_tokens=self.limits.max_seq_len)
        slots = Timed(self.runner, manager, settings)
        self.frames.spill_stats()
        began = time.perf_counter()
        with Service(Engine(self.runner, slots), self.model.native.info(""), None) as service:  # type: ignore[arg-type]
            first, again = self._ask(service)
            taken = time.perf_counter() - began
            stats = manager.stats()
        while slots.forget_one(all_of_it=True):
            pass
        manager.trim()
        return {
            "pages": stats.pages,
            "hit rate": manager.there / max(manager.wanted, 1),
            "moved": store.copies,
            "disk": stats.disk.written + stats.disk.read,
            "ahead": stats.prefetch.pages,
            "used": stats.prefetch.hits + stats.prefetch.late,
            "again": again,
            "pages s": slots.pages_s,
            "attention s": self.frames.spill_stats().waited_s,
            "first token": statistics.fmean(first),
            "all s": taken,
        }

    def _ask(self, service: Service) -> tuple[list[float], int]:
        """Seconds to each request's first token, and tokens that were computed more than once."""
        trace, rng = self.trace, random.Random(1)
        told: dict[int, tuple[int, ...]] = {}
        first: list[float] = []
        again = 0
        for round_ in trace.rounds:
            prompts = {c: told[c] + words(rng, trace.says) if c in told else trace.begins[c] for c in round_}
            streams = {c: service.submit(request(p, trace.answers)) for c, p in prompts.items()}
            for c, stream in streams.items():
                tokens, end = answer(stream)
                if end.error is not None:
                    raise end.error
                first.append(end.timings.queued_s + end.timings.prompt_s)
                again += max(len(told.get(c, ())) - 1 - end.usage.cached_tokens, 0)
                told[c] = prompts[c] + tokens
        return first, again


def request(prompt: tuple[int, ...], n: int) -> GenerationRequest:
    """For `n` tokens."""
    return GenerationRequest(prompt=prompt, sampling=GREEDY, max_tokens=n)


def answer(stream: Stream) -> tuple[tuple[int, ...], Finished]:
    """Its tokens, and how it ended."""
    tokens: tuple[int, ...] = ()
    for event in stream:
        if isinstance(event, TextDelta):
            tokens += event.tokens
        else:
            return tokens, event
    raise RuntimeError("a stream ends with Finished")


def ways() -> Iterator[Way]:
    """All rows but the first: modes of prefetching, then policies, then with a file."""
    for share in SHARES:
        yield from (Way(share, mode, "clock") for mode in MODES)
    for share in SHARES:
        yield from (Way(share, "hybrid", policy) for policy in POLICIES if policy != "clock")
    for share in SHARES[:2]:
        yield from (Way(share, mode, "clock", disk=True) for mode in ("off", "hybrid"))


def median(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each figure."""
    return {name: statistics.median(f[name] for f in found) for name in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--name", default="cpu")
    parser.add_argument("--conversations", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20, help=f"of {AT_ONCE} requests each")
    parser.add_argument("--prompt", type=int, default=200, help="tokens that a conversation begins with, on average")
    parser.add_argument("--long", type=int, default=1, help="times as much, with which every fifth one begins")
    parser.add_argument("--says", type=int, default=24, help="tokens that a turn adds")
    parser.add_argument("--answers", type=int, default=12, help="tokens of an answer")
    parser.add_argument("--page-size", type=int, default=0, help="tokens; 0: 16 on the CPU, 128 on a GPU")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=1, help="runs of each row, of which medians are shown")
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    args.page_size = args.page_size or (128 if args.gpu else 16)
    trace = Trace.drawn(args)
    run, kept = Bench(args, trace), bench.Kept(f"policies-{args.name}")
    whole = kept.row("all", lambda: run.run(Way(0, "off", "clock"), 0))
    rows = [row("100%", "-", "-", whole)]
    for way in ways():
        measure: Callable[[], dict[str, Any]] = lambda w=way: median(  # noqa: E731
            [run.run(w, whole["pages"]) for _ in range(args.repeat)]
        )
        share = f"{way.share:.0%}{', and a file' if way.disk else ''}"
        rows.append(row(share, way.prefetch, way.policy, kept.row(str(way), measure)))
    g = run.frames.geometry
    notes = [
        f"{args.conversations} conversations that begin with {args.prompt} tokens on average, every fifth with "
        f"{args.long} times as many; {args.rounds} rounds of "
        f"{AT_ONCE} requests; each adds {args.says} tokens and is answered by {args.answers}; seed {args.seed}",
        f"{whole['pages']:,} pages of {g.tokens_per_page:.4g} tokens and {g.frame_bytes:,} bytes are needed in all",
        f"medians of {args.repeat}"
        if args.repeat > 1
        else "single runs: counts repeat, seconds do not where others work",
        kept.note,
    ]
    bench.write(f"policies-{args.name}", f"Prefetching and replacement ({args.name})", rows, notes=notes)


def row(share: str, prefetch: str, policy: str, found: dict[str, Any]) -> dict[str, Any]:
    """One line of the table."""
    shown = {"of the pages": share, "prefetch": prefetch, "policy": policy}
    figures = {name: value for name, value in found.items() if name not in ("pages", "at")}
    figures["hit rate"] = f"{found['hit rate']:.1%}"
    return shown | figures


if __name__ == "__main__":
    main()
