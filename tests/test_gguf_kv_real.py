"""What is said about the KV cache is what llama.cpp allocates: small models of zeros, of each kind of memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pagedrun.config import EngineConfig
from pagedrun.gguf_file import read_facts
from tests.gguf_models import write_gguf

if TYPE_CHECKING:
    from pagedrun.native.library import Library

pytestmark = pytest.mark.real

LAYERS, EMBD, HEADS, KV_HEADS, HEAD, FF, VOCAB = 6, 256, 8, 4, 64, 128, 32
TOKENS = 4096

Tensors = dict[str, tuple[int, ...]]

COMMON: dict[str, Any] = {
    "__block_count": LAYERS,
    "__embedding_length": EMBD,
    "__attention__head_count": HEADS,
    "__context_length": TOKENS,
    "__feed_forward_length": FF,
    "__vocab_size": VOCAB,
    "__attention__layer_norm_rms_epsilon": 1e-6,
    "tokenizer__ggml__model": "no_vocab",
}
ATTENTION: dict[str, Any] = {
    "__attention__head_count_kv": KV_HEADS,
    "__attention__key_length": HEAD,
    "__attention__value_length": HEAD,
    "__rope__dimension_count": HEAD,
}


def attention(kv_heads: int = KV_HEADS, head: int = HEAD) -> Tensors:
    return {
        "attn_norm.weight": (EMBD,),
        "attn_q.weight": (EMBD, HEADS * head),
        "attn_k.weight": (EMBD, kv_heads * head),
        "attn_v.weight": (EMBD, kv_heads * head),
        "attn_output.weight": (HEADS * head, EMBD),
    }


def feed_forward() -> Tensors:
    up, down = (EMBD, FF), (FF, EMBD)
    return {"ffn_norm.weight": (EMBD,), "ffn_gate.weight": up, "ffn_up.weight": up, "ffn_down.weight": down}


def llama(layer: int) -> Tensors:
    return attention() | feed_forward()


def gemma(layer: int, head: int = HEAD, kv_heads: int = KV_HEADS) -> Tensors:
    norms: Tensors = {f"post_{what}_norm.weight": (EMBD,) for what in ("attention", "ffw")}
    norms |= {f"attn_{what}_norm.weight": (head,) for what in "qk"}
    return attention(kv_heads, head) | feed_forward() | norms


def gemma4(layer: int) -> Tensors:
    return gemma(layer, 64, 2) if layer % 3 == 2 else gemma(layer, 32, 4)


def gpt_oss(layer: int) -> Tensors:
    experts: Tensors = {f"ffn_{what}_exps.weight": (EMBD, FF, 4) for what in ("gate", "up")}
    experts |= {f"ffn_{what}_exps.bias": (FF, 4) for what in ("gate", "up")}
    return (
        attention()
        | experts
        | {
            "post_attention_norm.weight": (EMBD,),
            "attn_output.bias": (EMBD,),
            "attn_sinks.weight": (HEADS,),
            "ffn_down_exps.weight": (FF, EMBD, 4),
            "ffn_down_exps.bias": (EMBD, 4),
            "ffn_gate_inp.weight": (EMBD, 4),
            "ffn_gate_inp.bias": (4,),
        }
    )


def lfm2(layer: int) -> Tensors:
    if layer % 2:
        heads: Tensors = {f"attn_{what}_norm.weight": (EMBD // HEADS,) for what in "qk"}
        return attention(KV_HEADS, EMBD // HEADS) | feed_forward() | heads
    return feed_forward() | {
        "attn_norm.weight": (EMBD,),
        "shortconv.conv.weight": (3, EMBD),
        "shortconv.in_proj.weight": (EMBD, 3 * EMBD),
        "shortconv.out_proj.weight": (EMBD, EMBD),
    }


def mamba2(layer: int) -> Tensors:
    inner, state, groups, rank = 512, 64, 2, 8
    conv = inner + 2 * groups * state
    return {
        "attn_norm.weight": (EMBD,),
        "ssm_in.weight": (EMBD, inner + conv + rank),
        "ssm_conv1d.weight": (4, conv),
        "ssm_conv1d.bias": (conv,),
        "ssm_dt.bias": (rank,),
        "ssm_a": (1, rank),
        "ssm_d": (1, rank),
        "ssm_norm.weight": (inner // groups, groups),
        "ssm_out.weight": (inner, EMBD),
    }


def deepseek2(layer: int) -> Tensors:
    rank, rope, key, value = 64, 32, 96, 64
    return feed_forward() | {
        "attn_norm.weight": (EMBD,),
        "attn_kv_a_norm.weight": (rank,),
        "attn_q_a_norm.weight": (rank,),
        "attn_q_a.weight": (EMBD, rank),
        "attn_q_b.weight": (rank, HEADS * key),
        "attn_kv_a_mqa.weight": (EMBD, rank + rope),
        "attn_k_b.weight": (key - rope, rank, HEADS),
        "attn_v_b.weight": (rank, value, HEADS),
        "attn_output.weight": (HEADS * value, EMBD),
    }


MODELS: dict[str, tuple[Callable[[int], Tensors], dict[str, Any]]] = {
    "llama": (llama, ATTENTION),
    "gemma3": (gemma, ATTENTION | {"__attention__sliding_window": 1024}),
    "gemma4": (
        gemma4,
        {
            "__attention__sliding_window": 512,
            "__attention__sliding_window_pattern": [True, True, False, True, True, False],
            "__attention__shared_kv_layers": 3,
            "__attention__head_count_kv": [4, 4, 2, 4, 4, 2],
            "__attention__key_length": 64,
            "__attention__value_length": 64,
            "__attention__key_length_swa": 32,
            "__attention__value_length_swa": 32,
            "__rope__dimension_count": 64,
            "__rope__dimension_count_swa": 32,
            "__embedding_length_per_layer_input": 0,
        },
    ),
    "gpt-oss": (
        gpt_oss,
        ATTENTION
        | {
            "__attention__sliding_window": 128,
            "__expert_count": 4,
            "__expert_used_count": 2,
            "__expert_feed_forward_length": FF,
        },
    ),
    "lfm2": (
        lfm2,
        {
            "__attention__head_count_kv": [0, KV_HEADS] * 3,
            "__shortconv__l_cache": 3,
            "__leading_dense_block_count": LAYERS,
        },
    ),
    "mamba2": (
        mamba2,
        {
            "__ssm__conv_kernel": 4,
            "__ssm__inner_size": 512,
            "__ssm__state_size": 64,
            "__ssm__time_step_rank": 8,
            "__ssm__group_count": 2,
        },
    ),
    "deepseek2": (
        deepseek2,
        {
            "__attention__head_count_kv": 1,
            "__attention__key_length": 96,
            "__attention__value_length": 64,
            "__attention__key_length_mla": 96,
            "__attention__value_length_mla": 64,
            "__attention__kv_lora_rank": 64,
            "__attention__q_lora_rank": 64,
            "__rope__dimension_count": 32,
            "__leading_dense_block_count": LAYERS,
            "__expert_feed_forward_length": FF,
            "__expert_shared_count": 1,
        },
    ),
}


def small_model(folder: Path, arch: str) -> Path:
    """A model of zeros with that architecture's kind of memory."""
    layer_tensors, metadata = MODELS[arch]
    tensors: Tensors = {"token_embd.weight": (EMBD, VOCAB)}
    tensors["token_embd_norm.weight" if arch == "lfm2" else "output_norm.weight"] = (EMBD,)
    if arch == "gemma4":
        tensors["rope_freqs.weight"] = (32,)
    if arch in ("gpt-oss", "llama"):
        tensors["output.weight"] = (EMBD, VOCAB)
    for layer in range(LAYERS):
        tensors |= {f"blk.{layer}.{name}": shape for name, shape in layer_tensors(layer).items()}
    return write_gguf(folder / "m.gguf", arch, tensors, **COMMON, **metadata)


def allocated(library: Library, path: Path, kv_type: str) -> float:
    """MiB of memory for conversations, as llama.cpp logs it."""
    from pagedrun.native.context import NativeContext
    from pagedrun.native.door import Door
    from pagedrun.native.model import NativeModel
    from pagedrun.native.placement import Placement

    config = EngineConfig(max_seq_len=TOKENS, max_num_seqs=1, gpu_layers=0, kv_type=kv_type)
    placement = Placement(library.llama, Door(library.common), path, config)
    model = NativeModel(library, path, placement.model_params)
    context = NativeContext(model, placement.context_params)
    log = library.log.text()
    context.close()
    model.close()
    return sum(float(mib) for mib in re.findall(r"(?:kv_cache|recurrent): size = +([\d.]+) MiB", log))


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("arch", MODELS)
def test_memory_is_what_llama_cpp_takes(library: Library, tmp_path: Path, arch: str, kv_type: str) -> None:
    facts = read_facts(small_model(tmp_path, arch))
    assert facts.kv is not None
    expected = facts.kv.bytes_for(TOKENS, kv_type) / 2**20
    assert expected > 0.01
    assert allocated(library, facts.parts[0], kv_type) == pytest.approx(expected, abs=0.011)
