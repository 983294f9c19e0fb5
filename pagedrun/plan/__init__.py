"""What goes where: a model, a machine and wishes become a plan. Arithmetic alone, no file is read and nothing loaded.

shape      what a model is made of, layer by layer
machine    what a machine has: memory that is free, and how fast it is
buffers    what llama.cpp computes in, reckoned or as it answered
rules      every number that was chosen rather than read, and why
layers     which layers and experts are on the GPU
pages      the KV cache: tokens on the GPU, in RAM, on disk
need       what a trial takes
choose     the trial that is taken; cpu: without a GPU, ram: how its pages and buffers share a budget
finish     the plan of it: lines, what is missing, settings
reasons    why it is so; off_gpu: why nothing is on the GPU
speed      tokens a second
nearest    what would fit where the wish does not
ahead      what other amounts of RAM would get
result     what a plan says
text       a plan for people; data: the same for programs

    VRAM   | CUDA | attention, norms, shared experts, output | buffers | states | KV pages ... | routed experts ... |
    RAM    | token embeddings | the other routed experts | buffers | cells | KV pages that do not fit |
    disk   | idle KV pages |
"""

from __future__ import annotations

from pagedrun.plan.buffers import BufferModel, Measured, Reckoned
from pagedrun.plan.choose import make_plan
from pagedrun.plan.machine import MachineFacts, Speeds
from pagedrun.plan.result import Item, KvPlan, Plan, Settings, Speed
from pagedrun.plan.shape import ModelShape, shape_of

__all__ = [
    "BufferModel",
    "Item",
    "KvPlan",
    "MachineFacts",
    "Measured",
    "ModelShape",
    "Plan",
    "Reckoned",
    "Settings",
    "Speed",
    "Speeds",
    "make_plan",
    "shape_of",
]
