"""Every number of a plan that was chosen rather than read from a file or a machine. Bytes, tokens, seconds.

Measured figures are of an H200 behind PCIe 5 x16 with 16 cores (scripts/results).
"""

from __future__ import annotations

MIB = 1 << 20
GIB = 1 << 30

# -- memory that is neither weights nor buffers --------------------------------------------------------------------

#: CUDA's context, where it was not measured: 300 to 530 MiB by generation of the GPU.
CUDA_CONTEXT = 480 * MIB
#: What comes with the first batches: kernels are loaded when they are first run, cuBLAS takes its workspace, and
#: ggml's pool holds the quantised inputs of matrix products.
CUDA_LATER = 256 * MIB
#: By so much a start differs from the other, and pages must not be fewer for it than they were promised.
UNEVEN = 64 * MIB
#: Left to the desktop and the driver, unless somebody says how much VRAM may be used.
VRAM_MARGIN = 512 * MIB
#: RAM for Python, tables, the vocabulary.
PROCESS = 384 * MIB
#: RAM that is never pinned: the rest of the system has to live.
RAM_MARGIN = 1 * GIB
#: Share of the weights in RAM that may be more than RAM has room for. They are mapped from the file then, and the
#: system reads again what it had to drop.
MOST_FROM_DISK = 0.25
#: What llama.cpp notes of each row of the KV cache.
CELL_BYTES = 52
#: The hardware maps so much at a time on a GPU.
GRANULARITY = 2 * MIB

# -- the KV cache --------------------------------------------------------------------------------------------------

#: Tokens of a conversation that are in VRAM if at all possible, when no length is asked for. Few become longer. Routed
#: experts come after the whole window: a GiB of KV in RAM costs a GiB of traffic a token, a GiB of them a 32nd of that.
HOT_TOKENS = 32_768
#: The fewest that are kept in VRAM while the rest spills, where it is short. A dense model's layers come before more
#: than that: all its weights are read for every token, however short the conversation is.
HOT_TOKENS_LEAST = 4096
#: Windows beyond this are opened only where all of it fits VRAM: attention's buffers grow with the window.
WINDOW = 131_072
SHORTEST_WINDOW = 8192
#: A page's tokens where nothing will have to leave VRAM while it is in use.
PAGE_SIZE = 128

# -- batches -------------------------------------------------------------------------------------------------------

#: Tokens computed at once. Routed experts in RAM are copied to the GPU once for each batch, so that large ones pay.
BATCHES = (2048, 1024, 512)
#: By so much a batch is made smaller at a time, where that has room for the experts of one more layer. A layer's
#: experts are 2 % of a token's time on an H200's host (plan-35b.md); half the batch would cost 38 % of the speed of
#: prompts, by the plan's own prediction.
BATCH_STEP = 128
CPU_BATCH = 512
#: Tokens of a conversation for which the RAM that a plan needs without a GPU is reckoned, when no length is asked for.
CPU_LEAST = 2048

# -- speed ---------------------------------------------------------------------------------------------------------

#: Of each layer's step, beside reading memory: launches, and small operations one after the other (an H200 decodes a
#: 35B that is all in VRAM in 4.6 ms, of which 0.5 are reading).
LAYER_SECONDS = 100e-6
#: More for a layer whose experts are computed on the CPU: two ways over PCIe, and threads that wake up.
RAM_LAYER_SECONDS = 110e-6
#: A dense layer has fewer operations than one with experts or a recurrent state (an 8B: 3.8 ms, 1.5 of them reading).
DENSE_SHARE = 0.7
#: How often attention reads a byte of a cold page for a batch, where no stage holds it.
PREFILL_READS = 16
#: Share of a device's bandwidth that reading weights reaches.
EFFICIENCY = 0.75
#: Operations of prefill for each byte a second of VRAM, and the most that was seen (8B on an H200).
FLOPS_PER_BYTE = 130.0
MOST_FLOPS = 157e12
#: Products with a few experts' rows each reach less than those with whole matrices.
EXPERT_FLOPS = 0.4
#: Bytes a second of KV that attention reads in decode at most, times the square root of the KV heads: a fast card has
#: too little to do side by side (H200: 1.1 TB/s with 2 heads, 2.3 with 8).
ATTENTION_RATE = 0.8e12
#: A CPU's prefill, for each core.
CPU_FLOPS = 40e9

#: Lengths of a conversation for which speed is told.
DEPTHS = (0, 32_768, 131_072)
#: RAM for which a plan says what it gets.
RAM_SIZES = (16 * GIB, 32 * GIB)
