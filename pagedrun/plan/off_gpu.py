"""Why nothing is on a GPU that there is."""

from __future__ import annotations

from pagedrun.plan.layers import Weights, with_fewer_layers
from pagedrun.plan.need import Needs, Trial
from pagedrun.plan.result import Plan
from pagedrun.units import count, size


def why_nothing_fits(needs: Needs, trial: Trial) -> str:
    """What one layer and the output would take, and what most of that is for."""
    (weights,) = (w for w in with_fewer_layers(needs.shape) if w.gpu_layers == min(2, len(needs.shape.layers)))
    there = size(needs.machine.vram)
    cuda, context = needs.cuda(weights), needs.context(weights, trial)
    wanted = needs.wanted(weights, trial)
    kv = wanted - cuda - weights.vram - context
    if kv > max(cuda, weights.vram, context):
        who = f"{count(needs.seqs, 'conversation')} of {count(trial.window, 'token')}"
        whole = needs.seqs * trial.window * needs.token_bytes + needs.spare()
        return f"the KV cache of {who} takes {size(whole)}, half-empty pages included: too much for {there} of VRAM"
    parts = [
        (cuda, "CUDA itself"),
        (weights.vram, "weights"),
        (context, f"buffers of {count(trial.batch, 'token')} a batch"),
    ]
    most, what = max(parts)
    return f"not one layer fits {there} of VRAM: with the output it takes {size(wanted)}, {size(most)} of it for {what}"


def why_slower(plan: Plan, cpu: Plan, weights: Weights) -> str:
    """That the CPU alone decodes faster than this plan, some of whose layers are in RAM; "": it does not."""
    alone, both = cpu.speeds[0].decode, plan.speeds[0].decode
    if not cpu.fits or alone <= both:
        return ""
    n = len(weights.shape.layers)
    return (
        f"the CPU alone is predicted to decode faster, at {alone:,.1f} tok/s and not {both:,.1f} with "
        f"{n - weights.first} of {n} layers on the GPU, which is all that {size(plan.vram)} of VRAM have room for"
    )
