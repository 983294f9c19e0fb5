"""Which weights are on the GPU. llama.cpp counts layers from the end, the output as the last.

gpu_layers 3 of 4 layers:   RAM | layer 0 | layer 1 |   GPU | layer 2 | layer 3 | output |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pagedrun.plan.shape import ModelShape


@dataclass(frozen=True, slots=True)
class Weights:
    """A placement. gpu_layers: 0 to all + 1. ram_experts: layers on the GPU whose routed experts are in RAM."""

    shape: ModelShape
    gpu_layers: int
    ram_experts: tuple[int, ...] = ()

    @property
    def first(self) -> int:
        """The first layer on the GPU."""
        return max(len(self.shape.layers) + 1 - self.gpu_layers, 0)

    @property
    def whole(self) -> bool:
        """Whether all layers are on the GPU, routed experts aside."""
        return self.first == 0

    @property
    def output(self) -> int:
        """Of the output, on the GPU."""
        return self.shape.output if self.gpu_layers else 0

    @property
    def rest(self) -> int:
        """Of layers without their routed experts, on the GPU."""
        return sum(layer.rest for layer in self.shape.layers[self.first :])

    @property
    def experts(self) -> int:
        """Of routed experts, on the GPU."""
        ram = set(self.ram_experts)
        return sum(layer.experts for i, layer in enumerate(self.shape.layers) if i >= self.first and i not in ram)

    @property
    def vram(self) -> int:
        """All on the GPU."""
        return self.output + self.rest + self.experts

    @property
    def experts_in_ram(self) -> int:
        """Bytes of routed experts in RAM."""
        return self.shape.routed - self.experts

    @property
    def rest_in_ram(self) -> int:
        """Bytes of layers and output in RAM, without routed experts."""
        in_ram = self.shape.rest - self.rest
        if self.gpu_layers:
            return in_ram
        return in_ram + self.shape.output - (self.shape.embeddings if self.shape.tied else 0)  # which are there already

    @property
    def ram(self) -> int:
        """All in RAM."""
        return self.shape.embeddings + self.rest_in_ram + self.experts_in_ram

    @property
    def ram_layers(self) -> int:
        """Layers that the CPU has a part in."""
        return self.first + sum(i >= self.first for i in self.ram_experts)

    @property
    def kv_share(self) -> float:
        """Of the KV cache: what lies with layers on the GPU."""
        kept = [layer.attention for layer in self.shape.layers]
        return sum(kept[self.first :]) / max(sum(kept), 1) if any(kept) else float(self.gpu_layers > 0)


def without_experts(shape: ModelShape) -> Weights:
    """All layers on the GPU, all routed experts in RAM."""
    experts = tuple(i for i, layer in enumerate(shape.layers) if layer.experts)
    return Weights(shape, len(shape.layers) + 1, experts)


def with_more_experts(shape: ModelShape) -> Iterator[Weights]:
    """The same, with the experts of one more layer on the GPU each time, from the last layer on; not with all."""
    held = without_experts(shape).ram_experts
    for n in range(1, len(held)):
        yield Weights(shape, len(shape.layers) + 1, held[:-n])


def with_fewer_layers(shape: ModelShape) -> Iterator[Weights]:
    """Layers leave the GPU one after the other, from the first; the experts of all are in RAM. Down to none at all."""
    held = without_experts(shape).ram_experts
    for n in range(len(shape.layers), -1, -1):
        first = max(len(shape.layers) + 1 - n, 0)
        yield Weights(shape, n, tuple(i for i in held if i >= first))


def forced(shape: ModelShape, gpu_layers: int) -> Weights:
    """As many layers as somebody said, with all that is in them."""
    return Weights(shape, min(gpu_layers, len(shape.layers) + 1))
