"""One placement of a model, in a process of its own: what `bench_plan.py` starts for each of its candidates.

plan     as every command loads a model: the plan, pages, spilling
fit      llama.cpp's own fitting with llama-server's settings (1,024 MiB left, batches of 512)
ncmoe:K  routed experts of the first K layers in RAM, pinned, all else in VRAM; batches as large as the plan's, or of
         512 where these do not fit
usual    the same with batches of 512, as llama-server has them, and with the fewest such layers with which it fits

It loads the model for a context of so many tokens, fills that once, and says what it takes: a JSON object on stdout.
Then it measures what is asked for, a JSON object a line on stdin, and answers each with one on stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench
from paged_side import FLASH_ATTENTION_ON, LOAD_NONE, tokens_of
from plan_check import loaded, memory_row
from served import Served
from spill_side import AHEAD, PREFILLED, Deep

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
WARM = 2  # tokens of each turn that do not count: others computed meanwhile


@dataclass(frozen=True)
class Wish:
    """What to load. context: tokens; args: as `bench_plan.py` has them."""

    path: Path
    context: int
    args: argparse.Namespace

    @property
    def deepest(self) -> int:
        """The longest conversation that is measured: what is measured then still fits."""
        return max(self.context - AHEAD, 0)


def say(**found: Any) -> None:
    """Tell it to the parent."""
    print(json.dumps(found), flush=True)


class Watch:
    """What the driver says is in use since the process began."""

    def __init__(self, *, cpu: bool) -> None:
        self._cpu = cpu
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


@contextmanager
def planned(wish: Wish, watch: Watch) -> Iterator[Any]:
    """pagedrun, as every command loads a model."""
    gpus = [] if wish.args.cpu else machine.gpus()
    config = EngineConfig(
        gpu_memory=gpus[0].vram_free if gpus and wish.args.whole else 0,
        gpu_layers=0 if wish.args.cpu else -1,
        kv_type=wish.args.kv_type,
        max_seq_len=wish.context if wish.args.context else 0,
        threads=wish.args.threads,
    )
    with loaded(wish.path, config, gpus) as (service, plan):
        layers = len(shape_of(read_facts(wish.path)).layers)
        experts = len(plan.settings.ram_experts) if plan is not None else 0
        side = Served.of(service)
        tried(side, wish, watch)
        limits = service.limits
        found = {"experts": experts, "layers": layers, "context": limits.max_seq_len, "batch": limits.max_batch_tokens}
        if plan is not None:
            found["memory"] = memory_row(plan, side.slots.stats(), watch.note())
            found["predicted"] = {s.depth: s.decode for s in plan.speeds}
        yield side, found


def stock(wish: Wish, batch: int = UBATCH) -> tuple[Placement, Door, Any]:
    """Parameters as llama-server has them, where nothing is placed yet. batch: tokens computed at once."""
    library = load()
    library.log.verbose = True  # a computation that gets no memory ends the process, and only the log says why
    door = Door(library.common)
    config = EngineConfig(
        max_seq_len=wish.context,
        max_batch_tokens=BATCH,
        gpu_layers=0 if wish.args.cpu else 999,
        threads=wish.args.threads,
        kv_type=wish.args.kv_type,
    )
    placement = Placement(library.llama, door, wish.path, config)
    placement.context_params.n_ubatch = batch
    placement.context_params.flash_attn_type = FLASH_ATTENTION_ON
    placement.set_seq_len(-(-wish.context // 256) * 256, 1)
    return placement, door, library


@contextmanager
def run(wish: Wish, watch: Watch, library: Any, placement: Placement, **found: Any) -> Iterator[Any]:
    """Load what was placed."""
    native = NativeModel(library, wish.path, placement.model_params)
    of = Placed(placement, native, PagesDoor(library.llama._lib))
    side = Deep(of, int(placement.context_params.n_ctx) - AHEAD)  # type: ignore[arg-type]
    tried(side, wish, watch)
    params = placement.context_params
    yield side, found | {"context": int(params.n_ctx), "batch": int(params.n_ubatch)}
    side.close()
    native.close()


@contextmanager
def fitted(wish: Wish, watch: Watch) -> Iterator[Any]:
    """llama.cpp's fitting, for that context."""
    placement, door, library = stock(wish)
    defaults = library.llama.llama_model_default_params()
    if wish.args.cpu:
        defaults.n_gpu_layers = 0
    placement.model_params = defaults
    fit = door.fit(
        str(wish.path), defaults, placement.context_params, margin=FIT_MARGIN, n_ctx_min=FIT_MIN_CONTEXT
    )  # it owns what the parameters point to, and has to live
    if fit.report["status"] == 1:
        raise NotEnoughMemoryError("llama.cpp finds no placement that fits")
    how = f"{fit.report['n_gpu_layers']} layers on the GPU, {fit.report['n_overrides']} groups of experts not"
    with run(wish, watch, library, placement, how=how) as opened:
        yield opened


@contextmanager
def by_hand(wish: Wish, watch: Watch, n_layers: int, batch: int) -> Iterator[Any]:
    """Experts of the first layers in RAM. n_layers -1: as few as fit."""
    most = len(shape_of(read_facts(wish.path)).layers)
    choices = range(most + 1) if n_layers < 0 else range(n_layers, n_layers + 1)
    for n_tokens in (batch, UBATCH):
        placement, door, library = stock(wish, n_tokens)
        of = (door, library, wish)
        fits = bisect_left(choices, True, key=lambda k: room_for(k, placement, of))  # the more, the less
        if fits < len(choices):
            break
    else:
        raise NotEnoughMemoryError("llama.cpp's own figures are more than what is free")
    kept = put(placement, library, choices[fits])
    with run(wish, watch, library, placement, experts=choices[fits]) as opened:
        yield opened
    del kept


def put(placement: Placement, library: Any, n_layers: int) -> Overrides:
    """Say so in the parameters. What is returned has to live until the model is loaded."""
    overrides = Overrides(library.llama, range(n_layers))
    placement.model_params.tensor_buft_overrides = overrides.pointer
    placement.model_params.load_mode = LOAD_NONE
    return overrides


def room_for(n_layers: int, placement: Placement, of: tuple[Door, Any, Wish]) -> bool:
    """Whether llama.cpp says that it fits, with what CUDA takes while it computes."""
    door, library, wish = of
    kept = put(placement, library, n_layers)
    *gpus, _ = door.memory(str(wish.path), placement.model_params, placement.context_params)
    del kept
    needed = sum(int(gpu["model"] + gpu["context"] + gpu["compute"]) for gpu in gpus)
    return not gpus or needed + rules.CUDA_LATER <= int(gpus[0]["free"])


def tried(side: Any, wish: Wish, watch: Watch) -> None:
    """Fill the context once: all memory that it will ever take is taken then."""
    side.reset(wish.deepest)
    side.step((100,), wish.deepest)
    side.reset(wish.deepest)
    side.feed(tokens_of(1, min(PREFILLED, wish.context - wish.deepest)), wish.deepest)
    watch.note()


class Turns:
    """Measures one thing after the other. A conversation goes on where the last turn at its depth ended."""

    def __init__(self, side: Any) -> None:
        self.side = side
        self._depth = self._at = -1

    def decode(self, depth: int, n: int) -> dict[str, Any]:
        """Seconds of each of `n` tokens, one at a time."""
        if depth != self._depth:
            self.side.reset(depth)
            self._depth = self._at = depth
        for _ in range(WARM):
            self._token()
        began = time.perf_counter()
        for _ in range(n):
            self._token()
        found: dict[str, Any] = {"seconds": (time.perf_counter() - began) / n}
        return found | ({"cold": self.side.cold} if isinstance(self.side, Served) else {})

    def prefill(self, depth: int, n: int) -> dict[str, Any]:
        """Seconds of a token, of `n` that are read after so many."""
        self.side.reset(depth)
        began = time.perf_counter()
        self.side.feed(tokens_of(1, n), depth)
        self._depth = -1
        return {"seconds": (time.perf_counter() - began) / n}

    def _token(self) -> None:
        self.side.step((100 + self._at % 1000,), self._at)
        self._at += 1


def child(candidate: str, wish: Wish) -> int:
    """Load a candidate and serve; returns the process's exit code. 3: it does not fit."""
    kind, _, number = candidate.partition(":")
    ways: dict[str, Callable[[Wish, Watch], Any]] = {
        "plan": planned,
        "fit": fitted,
        "ncmoe": lambda wish, watch: by_hand(wish, watch, int(number), wish.args.batch),
        "usual": lambda wish, watch: by_hand(wish, watch, -1, UBATCH),
    }
    watch, began = Watch(cpu=wish.args.cpu), time.perf_counter()
    try:
        with ways[kind](wish, watch) as (side, found):
            say(**found, **{"load s": time.perf_counter() - began, "peak MiB": watch.peak / MIB})
            turns = Turns(side)
            for line in sys.stdin:
                asked = json.loads(line)
                say(**getattr(turns, asked["do"])(asked["depth"], asked["n"]))
    except (MemoryError, NotEnoughMemoryError) as e:
        say(why=f"does not fit: {e}")
        return 3
    return 0
