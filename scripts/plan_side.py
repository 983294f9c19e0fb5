"""One placement of a model, measured in a process of its own: what `bench_plan.py` starts for each of its candidates.

plan         as every command loads a model: the plan, pages, spilling; plan:N with --max-seq-len N
fit:N        llama.cpp's own fitting with llama-server's settings (1,024 MiB left, batches of 512), to go on at N tokens
ncmoe:K      routed experts of the first K layers in RAM, pinned, all else in VRAM; as many tokens as then fit
tuned        the same with the fewest such layers with which the longest context fits

What is found goes to stdout at once, a JSON object a line: what came before memory ran out counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench
import plan_check
from bench_spill import AHEAD, DECODED, PREFILLED, Deep, seconds
from paged_side import FLASH_ATTENTION_ON, LOAD_NONE, SLOT, Stock, tokens_of

from pagedrun import machine
from pagedrun.config import EngineConfig
from pagedrun.errors import NotEnoughMemoryError
from pagedrun.gguf_file import read_facts
from pagedrun.native.door import Door
from pagedrun.native.frames import PagesDoor
from pagedrun.native.library import load
from pagedrun.native.model import NativeModel
from pagedrun.native.override import Overrides
from pagedrun.native.placement import Placement
from pagedrun.plan import rules, shape_of

MIB = 1 << 20
FIT_MARGIN, FIT_MIN_CONTEXT = 1024 * MIB, 4096  # what llama-server has when nobody says otherwise
BATCH, UBATCH = 2048, 512  # the same
PREFILL_SECONDS = 3.0  # reading 2,048 tokens is repeated as long as this is not over


@dataclass(frozen=True)
class Wish:
    """What to measure. depths: tokens of context; args: as `bench_plan.py` has them."""

    path: Path
    depths: tuple[int, ...]
    args: argparse.Namespace

    @property
    def deepest(self) -> int:
        """Tokens of the longest context."""
        return max(*self.depths, AHEAD)

    def at(self, depth: int) -> int:
        """Tokens before those that are measured: these have to fit the context too."""
        return max(min(depth, self.deepest - AHEAD), 0)

    def context(self, depth: int) -> int:
        """Tokens that llama.cpp's own cache is made for, to be measured at a depth."""
        return -(-(self.at(depth) + AHEAD) // 256) * 256


def say(**found: Any) -> None:
    """Tell it to the parent."""
    print(json.dumps(found), flush=True)


class Watch:
    """What the driver says is in use since the process began."""

    def __init__(self, wish: Wish) -> None:
        self._cpu = wish.args.cpu
        self._before = self._used()
        self.peak = 0

    def note(self) -> int:
        """Bytes now."""
        now = self._used() - self._before
        self.peak = max(self.peak, now)
        return now

    def _used(self) -> int:
        return 0 if self._cpu else bench.in_use(gpu=True)


class Served(Stock):
    """What loading made for a service, without the sampling: tokens in, logits out."""

    def __init__(self, service: Any) -> None:
        engine = service._engine
        self.slots, self.context = engine._slots, engine.runner._context
        self.batch = engine.runner.limits.max_batch_tokens
        self._door = PagesDoor(load().llama._lib)
        self.slots.resume(SLOT, 0)

    def reset(self, length: int) -> None:
        """The slot has `length` tokens: pages are taken for them as for any, but nobody computes the rows."""
        manager, conversation = self.slots._manager, self.slots._of[SLOT]
        if manager.length(conversation) > length:
            manager.truncate(conversation, length)
        while (missing := length - manager.length(conversation)) > 0:
            self._prepare(n := min(self.batch, missing))
            self.slots.computed(SLOT, n)
        self.context.forget(SLOT)
        if length and not self._door.c.bind(self.context.pointer, SLOT, length, None):
            raise RuntimeError("the slot does not hold so many tokens")

    @property
    def cold(self) -> float:
        """Share of the pages that every step reads from RAM."""
        stats = self.slots.stats()
        return stats.spill.cold / max(stats.pages, 1) if stats else 0.0

    def step(self, tokens: tuple[int, ...], start: int) -> None:
        self._prepare(len(tokens))
        super().step(tokens, start)
        self.slots.computed(SLOT, len(tokens))

    def _prepare(self, n: int) -> None:
        if not self.slots.room(SLOT, n, spill=True):
            raise MemoryError("the pages do not fit")
        self.slots.ready()


@dataclass
class Placed:
    """What `Deep` needs of a model: one that llama.cpp placed, or somebody by hand."""

    placement: Placement
    native: NativeModel
    door: PagesDoor
    batch: int = BATCH


def measure(side: Any, depths: Sequence[int], wish: Wish, watch: Watch) -> None:
    """Decode and prefill at these depths, told one by one."""
    for i, depth in enumerate(depths):
        at = wish.at(depth)
        side.reset(at)
        seconds(side, at, 1, 8, 1)  # warm
        say(**{f"decode {depth}": 1 / seconds(side, at, 1, DECODED, wish.args.rounds)}, **peak(watch))
        if isinstance(side, Served):
            say(**{f"cold {depth}": side.cold})
        say(**{f"prefill {depth}": PREFILLED / prefill(side, at, wish.args.rounds, cold=i == 0)}, **peak(watch))


def prefill(side: Any, depth: int, rounds: int, *, cold: bool) -> float:
    """Median seconds of the next 2,048 tokens. cold: the first time does not count if there is a second."""
    taken: list[float] = []
    began = time.perf_counter()
    while len(taken) < rounds + cold and time.perf_counter() - began < PREFILL_SECONDS:
        start = time.perf_counter()
        side.feed(tokens_of(1, PREFILLED), depth)
        taken.append(time.perf_counter() - start)
        side.reset(depth)
    return statistics.median(taken[1:] if cold and len(taken) > 1 else taken)


def peak(watch: Watch) -> dict[str, float]:
    """The most that was in use so far."""
    watch.note()
    return {"peak MiB": watch.peak / MIB}


def planned(wish: Wish, max_seq_len: int) -> None:
    """pagedrun, as every command loads a model."""
    watch, gpus = Watch(wish), [] if wish.args.cpu else machine.gpus()
    config = EngineConfig(
        gpu_memory=gpus[0].vram_free if gpus and wish.args.whole else 0,
        gpu_layers=0 if wish.args.cpu else -1,
        kv_type=wish.args.kv_type,
        max_seq_len=max_seq_len,
        threads=wish.args.threads,
    )
    began = time.perf_counter()
    with plan_check.loaded(wish.path, config, gpus) as (service, plan):
        say(**{"load s": time.perf_counter() - began, "context": service.limits.max_seq_len})
        say(experts=len(plan.settings.ram_experts) if plan is not None else 0)
        if plan is not None:
            say(**{f"predicted {s.depth}": s.decode for s in plan.speeds})
        side = Served(service)
        measure(side, wish.depths, wish, watch)
        if plan is not None:
            say(memory=plan_check.memory_row(plan, side.slots.stats(), watch.note()))


def stock(wish: Wish, n_tokens: int) -> tuple[Placement, Door, Any]:
    """Parameters as llama-server has them, where nothing is placed yet."""
    library = load()
    library.log.verbose = True  # a computation that gets no memory ends the process, and only the log says why
    door = Door(library.common)
    config = EngineConfig(
        max_seq_len=n_tokens,
        max_batch_tokens=BATCH,
        gpu_layers=0 if wish.args.cpu else 999,
        threads=wish.args.threads,
        kv_type=wish.args.kv_type,
    )
    placement = Placement(library.llama, door, wish.path, config)
    placement.context_params.n_ubatch = UBATCH
    placement.context_params.flash_attn_type = FLASH_ATTENTION_ON
    return placement, door, library


def run(wish: Wish, watch: Watch, library: Any, placement: Placement, depths: Sequence[int]) -> None:
    """Load what was placed, and measure it."""
    n_tokens = int(placement.context_params.n_ctx)
    began = time.perf_counter()
    native = NativeModel(library, wish.path, placement.model_params)
    side = Deep(Placed(placement, native, PagesDoor(library.llama._lib)), n_tokens - AHEAD)  # type: ignore[arg-type]
    say(**{"load s": time.perf_counter() - began, "context": n_tokens})
    measure(side, [d for d in depths if wish.context(d) <= n_tokens], wish, watch)
    side.close()
    native.close()


def fitted(wish: Wish, depth: int) -> None:
    """llama.cpp's fitting, for the context that is needed at a depth."""
    watch, n_tokens = Watch(wish), wish.context(depth)
    placement, door, library = stock(wish, n_tokens)
    defaults = library.llama.llama_model_default_params()
    if wish.args.cpu:
        defaults.n_gpu_layers = 0
    placement.model_params = defaults
    fit = door.fit(
        str(wish.path), defaults, placement.context_params, margin=FIT_MARGIN, n_ctx_min=FIT_MIN_CONTEXT
    )  # it owns what the parameters point to, and has to live
    if fit.report["status"] == 1:
        raise NotEnoughMemoryError("llama.cpp finds no placement that fits")
    say(how=f"{fit.report['n_gpu_layers']} layers on the GPU, {fit.report['n_overrides']} groups of experts not")
    run(wish, watch, library, placement, wish.depths)


def by_hand(wish: Wish, n_layers: int) -> None:
    """Experts of the first layers in RAM. n_layers -1: so many that the longest context fits."""
    watch = Watch(wish)
    placement, door, library = stock(wish, wish.deepest)
    most = len(shape_of(read_facts(wish.path)).layers)
    contexts = sorted({wish.context(d) for d in wish.depths}, reverse=True)
    if n_layers < 0:
        choices = [(k, contexts[0]) for k in range(most + 1)]
    else:
        choices = [(min(n_layers, most), n_tokens) for n_tokens in contexts]
    found = first_that_fits(choices, placement, (door, library, wish))
    if found is None:
        raise NotEnoughMemoryError("llama.cpp's own figures are more than what is free")
    k, n_tokens = found
    say(experts=k, how=f"experts of {k} layers in RAM")
    kept = put(placement, library, k, n_tokens)
    run(wish, watch, library, placement, wish.depths)
    del kept


def put(placement: Placement, library: Any, n_layers: int, n_tokens: int) -> Overrides:
    """Say so in the parameters. What is returned has to live until the model is loaded."""
    overrides = Overrides(library.llama, range(n_layers))
    placement.model_params.tensor_buft_overrides = overrides.pointer
    placement.model_params.load_mode = LOAD_NONE
    placement.set_seq_len(n_tokens, 1)
    return overrides


def first_that_fits(choices: list[tuple[int, int]], placement: Placement, of: Any) -> tuple[int, int] | None:
    """The first of (layers, tokens) of which llama.cpp says that it fits; the later ones are smaller. Some asking."""
    door, library, wish = of
    low, high = 0, len(choices)
    while low < high:
        middle = (low + high) // 2
        kept = put(placement, library, *choices[middle])
        *gpus, _ = door.memory(str(wish.path), placement.model_params, placement.context_params)
        del kept
        needed = sum(int(gpu["model"] + gpu["context"] + gpu["compute"]) for gpu in gpus)
        if not gpus or needed + rules.CUDA_LATER <= int(gpus[0]["free"]):
            high = middle
        else:
            low = middle + 1
    return choices[low] if low < len(choices) else None


def child(candidate: str, wish: Wish) -> int:
    """Measure one candidate; returns the process's exit code. 3: it does not fit."""
    kind, _, number = candidate.partition(":")
    measures = {"plan": planned, "fit": fitted, "ncmoe": by_hand, "tuned": by_hand}
    try:
        measures[kind](wish, int(number or (-1 if kind == "tuned" else 0)))
    except (MemoryError, NotEnoughMemoryError) as e:
        say(why=f"does not fit: {e}")
        return 3
    return 0
