"""Tokens a second from bytes: what is read for a token or a batch, over how fast each memory is.

decode    GPU: its weights, hot KV     CPU: experts in RAM     one after the other
          cold KV comes over PCIe beside both
prefill   products and attention on the GPU; experts in RAM are copied to it, once for each batch
          cold KV comes beside both as well
direct    cold KV is read by attention itself, which waits for it: in decode once, in prefill again and again
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagedrun.kv.cost import with_cold
from pagedrun.plan import rules
from pagedrun.plan.layers import Weights
from pagedrun.plan.machine import MachineFacts
from pagedrun.plan.pages import hot_and_staged
from pagedrun.plan.result import KvPlan, Speed


@dataclass(frozen=True, slots=True)
class Predictor:
    """Of one plan. from_disk: bytes of weights that RAM has no room for. direct: cold pages are not staged."""

    weights: Weights
    machine: MachineFacts
    kv: KvPlan
    batch: int
    from_disk: int = 0
    direct: bool = False

    def up_to(self, window: int) -> tuple[Speed, ...]:
        """At the usual depths that a window has, and with a full one."""
        return tuple(self.at(depth) for depth in sorted({*(d for d in rules.DEPTHS if d < window), window}))

    def at(self, depth: int) -> Speed:
        """With `depth` tokens of context before."""
        on_gpu = self.weights.gpu_layers > 0
        hot = self._hot(depth) if on_gpu else depth
        cold = depth - int(hot)
        decode = self._decode(depth, cold)
        prefill = self._prefill(depth, cold) if on_gpu else self._cpu_prefill(depth)
        return Speed(depth, cold, 1 / decode, self.batch / prefill)

    def _hot(self, depth: int) -> float:
        if self.direct:  # no stages take room
            return min(depth, self.kv.hot)
        return hot_and_staged(depth, self.kv.hot, self.weights.shape.kv.full_layers)[0]

    def _decode(self, depth: int, cold: int) -> float:
        shape, speeds = self.weights.shape, self.machine.speeds
        share = shape.active_share
        kv_bytes = depth * self.kv.token_bytes
        gpu_kv = (depth - cold) * self.kv.token_bytes * self.weights.kv_share
        gpu = self.weights.output + self.weights.rest + self.weights.experts * share
        in_ram = self.weights.experts_in_ram * share + self.weights.rest_in_ram
        cpu_kv = kv_bytes * (1 - self.weights.kv_share)
        missed = self.from_disk / max(self.weights.ram, 1) * in_ram
        n_layers = len(shape.layers)
        dense = 1.0 if share or shape.kv.recurrent_layers else rules.DENSE_SHARE
        reading = rules.EFFICIENCY * speeds.vram
        attention = min(reading, rules.ATTENTION_RATE * math.sqrt(self._kv_heads))
        seconds = gpu / reading + gpu_kv / attention + (in_ram + cpu_kv) / speeds.ram
        if self.weights.gpu_layers:
            seconds += rules.LAYER_SECONDS * dense * n_layers + rules.RAM_LAYER_SECONDS * self.weights.ram_layers
        seconds += missed / speeds.disk
        copies = cold * self.kv.token_bytes / speeds.pcie
        return float(with_cold(seconds, direct=copies) if self.direct else with_cold(seconds, staged=copies))

    def _operations(self, depth: int) -> tuple[float, float]:
        """Of a token: products with weights, and attention over `depth` tokens."""
        shape = self.weights.shape
        heads = shape.kv.full_elements * max(shape.heads, 1) / max(self._kv_heads, 1)
        return 2 * shape.active_params, 2 * heads * depth

    @property
    def _kv_heads(self) -> int:
        return max(self.weights.shape.kv_heads, 1)

    def _prefill(self, depth: int, cold: int) -> float:
        shape, speeds = self.weights.shape, self.machine.speeds
        products, attention = self._operations(depth)
        rate = speeds.prefill_flops * (rules.EXPERT_FLOPS if shape.active_share else 1.0)
        seconds = self.batch * (products / rate + attention / speeds.prefill_flops)
        copied = (self.weights.experts_in_ram + self.weights.rest_in_ram) / speeds.pcie
        later = cold * self.kv.token_bytes / speeds.pcie
        waits = rules.PREFILL_READS * later if self.direct else max(later - seconds, 0.0)
        return seconds + copied + waits + self.from_disk / speeds.disk

    def _cpu_prefill(self, depth: int) -> float:
        products, attention = self._operations(depth)
        seconds = self.batch * (products + attention) / (rules.CPU_FLOPS * max(self.machine.cores, 1))
        return seconds + self.from_disk / self.machine.speeds.disk
