"""Why a plan is as it is, in sentences."""

from __future__ import annotations

from pagedrun.config import EngineConfig
from pagedrun.plan import rules
from pagedrun.plan.need import Choice, Needs
from pagedrun.plan.result import KvPlan
from pagedrun.plan.shape import ModelShape
from pagedrun.rope import scaling_text
from pagedrun.units import count, size


def reasons(needs: Needs, choice: Choice, kv: KvPlan) -> tuple[str, ...]:
    """For each decision one sentence or two."""
    texts = (*_weights(needs, choice), *_context(needs, choice, kv), *scaled(needs.config, needs.shape))
    return tuple(text for text in texts if text)


def scaled(config: EngineConfig, shape: ModelShape) -> list[str]:
    """That positions are scaled, where they are."""
    text = scaling_text(config, shape.n_ctx_train)
    return [f"{text[0].upper()}{text[1:]}."] if text else []


def _weights(needs: Needs, choice: Choice) -> list[str]:
    shape, weights = needs.shape, choice.weights
    n = len(shape.layers)
    texts = ["Token embeddings stay in RAM: of them one row is read for each token."]
    if needs.config.gpu_layers > 0:
        return [*texts, f"{weights.gpu_layers} layers are on the GPU because --gpu-layers says so."]
    if not weights.whole:
        on_gpu = n - weights.first
        texts.append(
            f"{on_gpu} of {n} layers are on the GPU: all of them would need {size(_all(needs, choice))}, "
            f"and {size(needs.machine.vram)} may be used. The KV cache of the others is in RAM, with them."
        )
        return texts
    if not shape.routed:
        return [*texts, f"All {n} layers are on the GPU: every weight of them is read for each token."]
    texts.append(
        f"Everything but the routed experts is on the GPU: it is {size(shape.rest + shape.output)}, and all of it is "
        f"read for each token. Of {size(shape.routed)} of routed experts a token reads "
        f"{100 * shape.active_share:.0f} %."
    )
    on_gpu = sum(layer.experts > 0 for layer in shape.layers) - len(weights.ram_experts)
    if choice.short:
        why = "No experts are on the GPU, because the KV cache comes first and has less than it should."
    elif on_gpu:
        why = f"The routed experts of {on_gpu} of {n} layers are on the GPU, in what is left."
    else:
        why = "No experts are on the GPU: what is left has no room for those of one layer."
    return [*texts, why]


def _all(needs: Needs, choice: Choice) -> int:
    from pagedrun.plan.layers import without_experts

    return needs.wanted(without_experts(needs.shape), choice.trial)


def _context(needs: Needs, choice: Choice, kv: KvPlan) -> list[str]:
    trial, shape = choice.trial, needs.shape
    texts = []
    if shape.routed and kv.token_bytes:
        texts.append(
            f"{count(trial.hot, 'token')} of each conversation get VRAM before experts do: a GiB of KV in RAM "
            f"costs a GiB of traffic for each token, a GiB of experts {size(rules.GIB * shape.active_share)}."
        )
    if kv.spills:
        why = "pages are of one layer each, which keeps copies ahead of the layers that need them"
        if needs.config.spill == "zero-copy":
            why = "attention reads them over the bus, a prompt again and again, and waits for it"
        texts.append(
            f"A conversation can have {count(trial.window, 'token')}; beyond {count(kv.hot)} its oldest pages go "
            f"to RAM and are read from there: {why}."
        )
    elif kv.token_bytes:
        so = ", so that pages can be small" if needs.config.paging != "off" else ""
        texts.append(f"All {count(trial.window, 'token')} of a conversation stay in VRAM{so}.")
    if needs.config.max_batch_tokens:
        return texts
    buffers = size(needs.compute(choice.weights, trial))
    if choice.weights.ram_experts:
        texts.append(
            f"{count(trial.batch, 'token')} are computed at once: experts in RAM are copied to the GPU for each batch. "
            f"The buffers for that, and for this length, take {buffers}."
        )
        if trial.batch not in (*rules.BATCHES, trial.window * needs.seqs):
            texts.append("Larger batches would read prompts faster, but take the room of one more layer's experts.")
    else:
        texts.append(f"{count(trial.batch, 'token')} are computed at once, with buffers of {buffers}.")
    return texts
