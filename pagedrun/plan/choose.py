"""From a model, a machine and wishes to a plan.

    1  the longest window whose conversation fits VRAM and RAM together
    2  for it, as much hot as is wished (with routed experts a whole window, else rules.HOT_TOKENS) and the largest
       batch; less of both where VRAM is short
    3  routed experts, layer by layer from the last, in what is left; only once the wish is met. If one more layer all
       but fits, the batch gives way, by a quarter of it at most
    4  what is left then is room for more pages

More VRAM therefore never gives a shorter window or fewer experts. If not even the shortest window fits with all layers
on the GPU, layers stay in RAM; all of them where that is faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pagedrun.config import EngineConfig
from pagedrun.plan import rules
from pagedrun.plan.buffers import BufferModel
from pagedrun.plan.cpu import cpu_plan
from pagedrun.plan.finish import finish
from pagedrun.plan.layers import Weights, forced, with_fewer_layers, with_more_experts, without_experts
from pagedrun.plan.machine import MachineFacts
from pagedrun.plan.nearest import with_nearest
from pagedrun.plan.need import Choice, Needs, Trial
from pagedrun.plan.off_gpu import why_nothing_fits, why_slower
from pagedrun.plan.result import Plan
from pagedrun.plan.shape import ModelShape


def make_plan(shape: ModelShape, machine: MachineFacts, config: EngineConfig, buffers: BufferModel) -> Plan:
    """The plan. One that does not fit says what is missing, and what would fit."""
    plan = choose(shape, machine, config, buffers)
    if plan.fits:
        return plan
    return with_nearest(plan, config, lambda other: choose(shape, machine, other, buffers))


def choose(shape: ModelShape, machine: MachineFacts, config: EngineConfig, buffers: BufferModel) -> Plan:
    """The plan, without looking for others where it does not fit."""
    if not machine.vram or config.gpu_layers == 0:
        return cpu_plan(shape, machine, config)
    needs = Needs(shape, machine, config, buffers)
    if config.gpu_layers > 0:
        return _forced(needs, forced(shape, config.gpu_layers))
    chosen = _Chooser(needs).choice()
    if not chosen.weights.gpu_layers:
        return _on_cpu(needs, why_nothing_fits(needs, chosen.trial))
    plan = finish(needs, chosen)
    if not chosen.weights.whole and (slower := why_slower(plan, _on_cpu(needs, ""), chosen.weights)):
        return _on_cpu(needs, slower)
    return plan


def _on_cpu(needs: Needs, why: str) -> Plan:
    """Without the GPU that there is. gpu_memory is that GPU's size, and no limit on RAM."""
    config = replace(needs.config, gpu_memory=0)
    return cpu_plan(needs.shape, needs.machine, config, off_gpu=why)


@dataclass(frozen=True, slots=True)
class _Chooser:
    needs: Needs

    def choice(self) -> Choice:
        """Weights and a trial that fit; with as few layers as it takes."""
        least = without_experts(self.needs.shape)
        for trial in self._trials(least):
            if self._fits(least, trial):
                return self._fill(least, trial)
        return self._fewer_layers()

    def _fits(self, weights: Weights, trial: Trial, vram: int = 0) -> bool:
        """vram: bytes; 0: what the machine has."""
        wanted = self.needs.wanted(weights, trial)
        return not wanted or wanted + rules.UNEVEN <= (vram or self.needs.machine.vram)

    def _trials(self, weights: Weights) -> Iterator[Trial]:
        """The better ones first."""
        for window in windows(self.needs):
            for hot, batch in self._wishes(window):
                trial = Trial(window, batch, hot)
                if self._holds(weights, trial):
                    yield trial

    def _wishes(self, window: int) -> list[tuple[int, int]]:
        """Hot tokens and batch, the better ones first. Without experts to copy, a large batch is worth little VRAM."""
        sizes = batches(self.needs.config, window)
        if not self.needs.may_spill:
            return [(window, batch) for batch in sizes]
        least = min(rules.HOT_TOKENS_LEAST, window)
        modest = sizes if self.needs.shape.routed else sizes[-1:]
        wished = [(wish, batch) for wish in self._hot(window) for batch in sizes]
        return [*wished, *((least, batch) for batch in modest)]

    def _hot(self, window: int) -> list[int]:
        """Tokens of each conversation to have in VRAM, the better first; routed experts are the last to get any."""
        needs, usual = self.needs, min(rules.HOT_TOKENS, window)
        if needs.config.max_seq_len:
            return [window]
        return [max(window // needs.seqs, usual), usual] if needs.shape.routed else [usual]

    def _holds(self, weights: Weights, trial: Trial) -> bool:
        """Whether there is room for one conversation of the whole window, as far as VRAM can be counted on."""
        needs = self.needs
        warm = needs.swap(weights, trial)
        hot = trial.hot * needs.seqs * needs.token_bytes
        if needs.config.max_seq_len:  # what else VRAM has goes to pages before it goes to experts
            hot = max(hot, needs.left_for_pages(weights, trial))
        return trial.window * needs.token_bytes <= hot + (warm if needs.may_spill else 0)

    def _fill(self, least: Weights, trial: Trial) -> Choice:
        """Experts in what is left, and with all of them on the GPU a longer window."""
        best = next(self._trials(least))
        if not self.needs.shape.routed:
            return self._longer(least, trial)
        if (trial.window, trial.hot) != (best.window, best.hot):
            return Choice(least, trial, short=True)
        weights = self._placements()[self._experts(trial, best.batch)]
        trial = replace(trial, batch=self._batch(weights, trial, best.batch))
        if weights.ram_experts or trial.batch < best.batch:
            return Choice(weights, trial)
        return self._longer(weights, trial)

    def _placements(self) -> list[Weights]:
        """By how many layers have their experts on the GPU."""
        least = without_experts(self.needs.shape)
        return [least, *with_more_experts(self.needs.shape), replace(least, ram_experts=())]

    def _count(self, trial: Trial, vram: int) -> int:
        """How many layers' experts fit so many bytes; -1: not even the rest does."""
        *some, everything = self._placements()
        if self._fits(everything, trial, vram):
            return len(some)
        return next((n for n, weights in enumerate(some) if not self._fits(weights, trial, vram)), len(some)) - 1

    def _experts(self, trial: Trial, largest: int) -> int:
        """How many layers' experts there will be.

        With a smaller batch than the largest no more than until the next larger one has room: from there on more VRAM
        makes the batch larger, and the experts stay as many. One more than fits the largest, where a batch that is
        smaller by a quarter at most has room for it.
        """
        needs, found, larger = self.needs, 0, 0
        for batch in batches(needs.config, trial.window):
            this = replace(trial, batch=batch)
            n = self._count(this, needs.machine.vram)
            if larger:
                next_one = needs.wanted(self._placements()[0], replace(trial, batch=larger)) + rules.UNEVEN
                n = min(n, self._count(this, next_one))
            elif n >= 0 and not needs.config.max_batch_tokens:
                n = min(n + 1, self._count(replace(trial, batch=largest * 3 // 4), needs.machine.vram))
            found, larger = max(found, n), batch
        return found

    def _batch(self, weights: Weights, trial: Trial, largest: int) -> int:
        """The largest that fits beside these weights."""
        least = batches(self.needs.config, trial.window)[-1]
        sizes = range(largest, least - 1, -rules.BATCH_STEP)
        return next((n for n in sizes if self._fits(weights, replace(trial, batch=n))), trial.batch)

    def _longer(self, weights: Weights, trial: Trial) -> Choice:
        """Beyond the usual window as far as all of a conversation stays hot."""
        if self.needs.config.max_seq_len:
            return Choice(weights, trial)
        for window in _halves(self.needs.shape.n_ctx_train, trial.window + 1):
            longer = replace(trial, window=window, hot=window)
            if self._fits(weights, longer):
                return Choice(weights, replace(longer, hot=trial.hot))
        return Choice(weights, trial)

    def _fewer_layers(self) -> Choice:
        """Some layers in RAM: their part of the KV cache too, so that nothing is copied for them."""
        config, shape = self.needs.config, self.needs.shape
        window = config.max_seq_len or min(rules.SHORTEST_WINDOW, shape.n_ctx_train)
        trial = Trial(window, batches(config, window)[-1], window)
        for weights in with_fewer_layers(shape):
            if self._fits(weights, trial):
                return Choice(weights, trial, short=True)
        raise AssertionError("without layers nothing is needed")


def windows(needs: Needs) -> list[int]:
    """Lengths of a conversation to try, the longest first."""
    if asked := needs.config.max_seq_len:
        return [asked]
    trained = needs.shape.n_ctx_train
    most = rules.WINDOW if needs.may_spill else rules.HOT_TOKENS  # beyond that routed experts come first
    return list(_halves(min(trained, most), min(rules.SHORTEST_WINDOW, trained)))


def batches(config: EngineConfig, window: int) -> tuple[int, ...]:
    """Tokens computed at once, to try, the largest first; llama.cpp cuts them to what all conversations can have."""
    wished = (config.max_batch_tokens,) if config.max_batch_tokens else rules.BATCHES
    return tuple(sorted({min(n, window * config.max_num_seqs) for n in wished}, reverse=True))


def _halves(most: int, least: int) -> Iterator[int]:
    while most >= max(least, 1):
        yield most
        most //= 2


def _forced(needs: Needs, weights: Weights) -> Plan:
    """With a number of layers that somebody gave: the best trial that fits, or the most modest one, as too large."""
    trials = [Trial(w, b, hot) for w in windows(needs) for hot in _hot_of(needs, w) for b in batches(needs.config, w)]
    fitting = [t for t in trials if needs.wanted(weights, t) <= needs.machine.vram]
    ram = needs.machine.ram - rules.RAM_MARGIN  # pages of layers in RAM are there too, and weights want to be pinned
    good = (t for t in fitting if needs.ram_before_pages(weights, t) <= ram and _held(needs, weights, t))
    modest = (t for t in fitting if t.hot == _hot_of(needs, t.window)[-1])
    return finish(needs, Choice(weights, next(good, next(modest, trials[-1]))))


def _hot_of(needs: Needs, window: int) -> list[int]:
    """Tokens of each conversation to have beside their layers, the most first; all where none may be elsewhere."""
    least = min(rules.HOT_TOKENS_LEAST, window)
    if not needs.may_spill:
        return [window]
    return sorted({window, max(window // needs.seqs, least), least, *_halves(window, least)}, reverse=True)


def _held(needs: Needs, weights: Weights, trial: Trial) -> bool:
    """Whether a conversation of the window has room, in VRAM and beyond."""
    hot = trial.hot * needs.seqs * needs.token_bytes
    if weights.whole:
        hot = max(hot, needs.left_for_pages(weights, trial))
    beyond = needs.swap(weights, trial) if needs.may_spill else 0
    return trial.window * needs.token_bytes <= hot + beyond
