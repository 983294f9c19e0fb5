"""One placement of a model, measured in a process of its own: what `bench_plan.py` starts for each of its candidates.

plan         as every command loads a model: the plan, pages, spilling; plan:N with --max-seq-len N. Then llama.cpp's
             own cache over the same weights, where they are, and both once more: machines drift, processes differ
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
from bench_spill import AHEAD, DECODED, PREFILLED, Deep, seconds
from paged_side import FLASH_ATTENTION_ON, LOAD_NONE, tokens_of
from plan_check import memory_row
from served import Served

from pagedrun import load as loading
from pagedrun import machine
from pagedrun.config import EngineConfig
from pagedrun.errors import NotEnoughMemoryError
from pagedrun.gguf_file import KvFacts, read_facts
from pagedrun.native.door import Door
from pagedrun.native.frames import PagesDoor
from pagedrun.native.library import load
from pagedrun.native.model import NativeModel
from pagedrun.native.override import Overrides
from pagedrun.native.paging import whole
from pagedrun.native.placement import Placement
from pagedrun.native.runner import NativeRunner
from pagedrun.opening import Opening
from pagedrun.plan import rules, shape_of
from pagedrun.planning import machine_facts

MIB = 1 << 20
FIT_MARGIN, FIT_MIN_CONTEXT = 1024 * MIB, 4096  # what llama-server has when nobody says otherwise
BATCH, UBATCH = 2048, 512  # the same
PREFILL_SECONDS = 2.0  # reading 2,048 tokens is repeated as long as this is not over
PASSES = 2  # of a plan and of llama.cpp over its weights, in turn


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


@dataclass
class Placed:
    """What `Deep` needs of a model: one that llama.cpp placed, or somebody by hand."""

    placement: Placement
    native: NativeModel
    door: PagesDoor
    batch: int = BATCH


def measure(side: Any, depths: Sequence[int], wish: Wish, watch: Watch, found: dict[str, list[float]]) -> None:
    """Decode, and for the first time prefill, at these depths, added to what was found, and told one by one."""
    for i, depth in enumerate(depths):
        at = wish.at(depth)
        side.reset(at)
        seconds(side, at, 1, 8, 1)  # warm
        for _ in range(wish.args.rounds):
            found.setdefault(f"decode {depth}", []).append(1 / seconds(side, at, 1, DECODED, 1))
        if isinstance(side, Served):
            say(**{f"cold {depth}": side.cold})
        if f"prefill {depth}" not in found:
            found[f"prefill {depth}"] = [PREFILLED / prefill(side, at, wish.args.rounds, cold=i == 0)]
        say(**peak(watch))


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


def medians(found: dict[str, list[float]]) -> dict[str, float]:
    """Of all rounds."""
    return {name: statistics.median(values) for name, values in found.items()}


def planned(wish: Wish, max_seq_len: int) -> None:
    """pagedrun, as every command loads a model, and llama.cpp over the same weights, in turn."""
    watch, gpus, library = Watch(wish), [] if wish.args.cpu else machine.gpus(), load()
    config = EngineConfig(
        gpu_memory=gpus[0].vram_free if gpus and wish.args.whole else 0,
        gpu_layers=0 if wish.args.cpu else -1,
        kv_type=wish.args.kv_type,
        max_seq_len=max_seq_len,
        threads=wish.args.threads,
    )
    machine_facts(wish.path, config, gpus, probe=True)  # in a process of its own; what it finds is remembered
    began, free, facts = time.perf_counter(), machine.free_memory(gpus), read_facts(wish.path)
    plan = loading._plan(facts, config, gpus, library)
    placement = Placement(library.llama, Door(library.common), wish.path, config, plan=plan, free_vram=free.vram)
    native = NativeModel(library, wish.path, placement.model_params)
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    for i in range(PASSES):
        opened = Opening(native, native.info(""), facts.kv or KvFacts(), placement, config, free).open()
        if opened.room is None:
            raise RuntimeError("this model's KV cache cannot be paged")
        door, limits, room = Door(library.common), opened.limits, opened.room
        runner = NativeRunner(native, opened.context, door, limits, can_rewind=False, frames=room.frames)
        side = Served(runner, loading._paged(runner, room, config, plan, library))
        if not i:
            say(**{"load s": time.perf_counter() - began, "context": limits.max_seq_len})
            say(experts=len(plan.settings.ram_experts) if plan is not None else 0, layers=len(shape_of(facts).layers))
        depths = [d for d in wish.depths if wish.context(d) <= whole(limits.max_seq_len)]
        measure(side, depths, wish, watch, ours)
        say(**medians(ours))
        if plan is not None and not i:
            say(memory=memory_row(plan, side.slots.stats(), watch.note()))
            say(**{f"predicted {s.depth}": s.decode for s in plan.speeds})
        side.close()
        if wish.args.twin:
            twin(wish, native, limits.max_seq_len, theirs)


def twin(wish: Wish, native: NativeModel, max_seq_len: int, found: dict[str, list[float]]) -> None:
    """llama.cpp's own cache over weights that a plan placed, of the same length."""
    placement, _, library = stock(wish, max_seq_len)
    side = Deep(Placed(placement, native, PagesDoor(library.llama._lib)), max_seq_len - AHEAD)  # type: ignore[arg-type]
    depths = [d for d in wish.depths if wish.context(d) <= max_seq_len]
    measure(side, depths, wish, Watch(wish), found)
    side.close()
    say(twin=medians(found) | {"context": max_seq_len})


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
    found: dict[str, list[float]] = {}
    measure(side, [d for d in depths if wish.context(d) <= n_tokens], wish, watch, found)
    say(**medians(found))
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
