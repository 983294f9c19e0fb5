"""What is said about a model from its header: what its tensors are for, and what a conversation costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagedrun.errors import ModelFileError
from pagedrun.gguf_file import KvFacts, read_facts
from pagedrun.gguf_file.groups import GROUPS, group_names
from tests.gguf_bytes import STRING, entry, text, u32, write
from tests.gguf_models import shape_of, write_gguf


def kv(folder: Path, arch: str, **metadata: Any) -> KvFacts | None:
    return read_facts(write_gguf(folder / "m.gguf", arch, **shape_of(**metadata))).kv


GROUP_OF = {
    "token_embd.weight": "token embeddings",
    "per_layer_token_embd.weight": "token embeddings",
    "position_embd.weight": "token embeddings",
    "token_embd_norm.weight": "norms",
    "output.weight": "output",
    "output.bias": "output",
    "cls.output.weight": "output",
    "output_norm.weight": "norms",
    "rope_freqs.weight": "other",
    "blk.0.attn_q.weight": "attention",
    "blk.0.attn_qkv.bias": "attention",
    "blk.0.attn_output.weight": "attention",
    "blk.0.attn_sinks.weight": "attention",
    "blk.0.attn_q_norm.weight": "norms",
    "blk.0.attn_norm.weight": "norms",
    "blk.0.post_attention_norm.weight": "norms",
    "blk.0.ffn_norm.weight": "norms",
    "blk.0.ffn_gate.weight": "feed-forward",
    "blk.10.ffn_down.bias": "feed-forward",
    "blk.0.ffn_gate_exps.weight": "routed experts",
    "blk.0.ffn_gate_up_exps.weight": "routed experts",
    "blk.0.ffn_down_exps.bias": "routed experts",
    "blk.0.ffn_up.7.weight": "routed experts",
    "blk.0.ffn_up_shexp.weight": "shared experts",
    "blk.0.ffn_gate_inp.weight": "router",
    "blk.0.ffn_gate_inp_shexp.weight": "router",
    "blk.0.exp_probs_b.bias": "router",
    "blk.1.ssm_in.weight": "recurrent",
    "blk.1.ssm_norm.weight": "norms",
    "blk.1.shortconv.conv.weight": "recurrent",
    "blk.1.time_mix_key.weight": "recurrent",
    "blk.2.nextn.eh_proj.weight": "other",
    "dec.blk.0.cross_attn_q.weight": "attention",
    "v.blk.0.attn_q.weight": "attention",
    "mm.0.weight": "other",
}


@pytest.mark.parametrize("name", GROUP_OF)
def test_what_a_tensor_is_for(name: str) -> None:
    assert group_names([name]) == {name: GROUP_OF[name]}
    assert GROUP_OF[name] in GROUPS


def test_linear_attention_is_recurrent_and_falcons_is_not() -> None:
    qwen = ["blk.0.attn_qkv.weight", "blk.0.attn_gate.weight", "blk.0.ssm_out.weight", "blk.3.attn_q.weight"]
    assert [*group_names(qwen).values()] == ["recurrent", "recurrent", "recurrent", "attention"]
    falcon = ["blk.0.attn_q.weight", "blk.0.ssm_in.weight"]
    assert [*group_names(falcon).values()] == ["attention", "recurrent"]


def test_every_layer_keeps_keys_and_values(tmp_path: Path) -> None:
    facts = kv(tmp_path, "llama", __attention__head_count_kv=2)
    assert facts == KvFacts(full_layers=4, full_elements=4 * 2 * (16 + 16))
    assert facts.bytes_per_token("f16") == 512
    assert facts.bytes_per_token("q8_0") == 272
    assert facts.bytes_for(1000, "f16") == 512_000


def test_heads_of_their_own_length(tmp_path: Path) -> None:
    facts = kv(tmp_path, "llama", __attention__key_length=24, __attention__value_length=8)
    assert facts == KvFacts(full_layers=4, full_elements=4 * 8 * 32)


def test_heads_by_layer_and_layers_without(tmp_path: Path) -> None:
    facts = kv(tmp_path, "deci", __attention__head_count_kv=[2, 0, 1, 0])
    assert facts == KvFacts(full_layers=2, full_elements=3 * 32)


def test_blocks_that_only_predict_keep_nothing(tmp_path: Path) -> None:
    facts = kv(tmp_path, "glm4moe", __nextn_predict_layers=1)
    assert facts is not None and facts.full_layers == 3


def test_windows_by_period(tmp_path: Path) -> None:
    """gpt-oss: the second of two layers sees everything."""
    facts = kv(tmp_path, "gpt-oss", __attention__sliding_window=128, __attention__head_count_kv=1)
    assert facts == KvFacts(full_layers=2, full_elements=64, window_layers=2, window_elements=64, window=128)
    assert facts.bytes_for(100, "f16") == 2 * (64 * 100 + 64 * 100)
    assert facts.bytes_for(10_000, "f16") == 2 * (64 * 10_000 + 64 * 768)  # 128 and a batch of 512, in 256s


def test_windows_layer_by_layer_and_shared_layers(tmp_path: Path) -> None:
    """Gemma 4: which layers have windows is in the file, with other heads there; the last ones share."""
    facts = kv(
        tmp_path,
        "gemma4",
        __attention__sliding_window=512,
        __attention__sliding_window_pattern=[True, False, True, False],
        __attention__shared_kv_layers=1,
        __attention__head_count_kv=[2, 1, 2, 1],
        __attention__key_length=64,
        __attention__value_length=64,
        __attention__key_length_swa=32,
        __attention__value_length_swa=32,
    )
    assert facts == KvFacts(full_layers=1, full_elements=128, window_layers=2, window_elements=256, window=512)


def test_a_window_of_unknown_layers_is_counted_without(tmp_path: Path) -> None:
    facts = kv(tmp_path, "mistral9", __attention__sliding_window=512, __attention__head_count_kv=1)
    assert facts == KvFacts(full_layers=4, full_elements=128, accuracy="at most")


def test_mla_keeps_one_row(tmp_path: Path) -> None:
    facts = kv(
        tmp_path,
        "deepseek2",
        __attention__head_count_kv=1,
        __attention__key_length=576,
        __attention__value_length=512,
        __attention__key_length_mla=192,
        __attention__value_length_mla=128,
    )
    assert facts == KvFacts(full_layers=4, full_elements=4 * 576)


SSM: dict[str, Any] = {
    "__ssm__conv_kernel": 4,
    "__ssm__inner_size": 64,
    "__ssm__state_size": 16,
    "__ssm__group_count": 2,
}


def test_qwen35_has_full_attention_in_every_fourth_layer(tmp_path: Path) -> None:
    facts = kv(tmp_path, "qwen35", __full_attention_interval=4, __attention__head_count_kv=1, **SSM)
    state = 3 * 4 * (3 * (64 + 2 * 2 * 16) + 64 * 16)
    assert facts == KvFacts(full_layers=1, full_elements=32, recurrent_layers=3, state_bytes=state)
    assert facts.bytes_for(10, "f16") == 640 + state


def test_recurrent_layers_may_be_listed(tmp_path: Path) -> None:
    facts = kv(tmp_path, "qwen35moe", __attention__recurrent_layers=[True, False, False, True], **SSM)
    assert facts is not None and (facts.full_layers, facts.recurrent_layers) == (2, 2)


def test_in_other_hybrids_layers_without_kv_heads_are_recurrent(tmp_path: Path) -> None:
    facts = kv(tmp_path, "lfm2", __attention__head_count_kv=[0, 2, 0, 2], __shortconv__l_cache=3)
    assert facts == KvFacts(full_layers=2, full_elements=128, recurrent_layers=2, state_bytes=2 * 4 * 128 * 2)


def test_nemotron_has_layers_that_are_feed_forward_alone(tmp_path: Path) -> None:
    heads, ff = [0, 2, 0, 0], [0, 0, 512, 0]
    facts = kv(tmp_path, "nemotron_h", __attention__head_count_kv=heads, __feed_forward_length=ff, **SSM)
    assert facts is not None and (facts.full_layers, facts.recurrent_layers) == (1, 2)


def test_falcon_h1_has_both_in_every_layer(tmp_path: Path) -> None:
    facts = kv(tmp_path, "falcon-h1", **SSM)
    assert facts is not None and (facts.full_layers, facts.recurrent_layers) == (4, 4)


def test_rwkv_keeps_a_state_only(tmp_path: Path) -> None:
    facts = kv(tmp_path, "rwkv7", __wkv__head_size=64)
    assert facts == KvFacts(recurrent_layers=4, state_bytes=4 * 4 * (2 * 128 + 128 * 64))


def test_encoders_keep_nothing(tmp_path: Path) -> None:
    assert kv(tmp_path, "bert") == KvFacts()


def test_what_is_not_known_is_not_guessed(tmp_path: Path) -> None:
    assert read_facts(write_gguf(tmp_path / "m.gguf", "llama", __block_count=4)).kv is None


def test_other_memory_makes_it_about(tmp_path: Path) -> None:
    facts = kv(tmp_path, "deepseek32", __attention__head_count_kv=1)
    assert facts == KvFacts(full_layers=4, full_elements=128, accuracy="about")


@pytest.mark.parametrize("layers", [0, 2**32 - 1])
def test_impossible_numbers_of_layers(tmp_path: Path, layers: int) -> None:
    assert kv(tmp_path, "llama", __block_count=layers) is None


def test_the_facts_of_a_model(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": (16, 10), "blk.0.ffn_gate_exps.weight": (16, 8, 4), "output_norm.weight": (16,)}
    path = write_gguf(
        tmp_path / "m.gguf",
        "llama",
        tensors,
        **shape_of(__expert_count=4, __expert_used_count=2),
        general__name="A Model",
        general__license="mit",
        general__sampling__temp=0.95,
        general__sampling__top_k=20,
        general__sampling__penalty_last_n=64,
        general__sampling__min_p=float("nan"),
        tokenizer__ggml__tokens=["a", "b", "c"],
        tokenizer__chat_template="{{ x }}",
        tokenizer__chat_template__rag="{{ y }}",
    )
    facts = read_facts(path)
    assert (facts.name, facts.title, facts.kind, facts.architecture) == ("m.gguf", "A Model", "model", "llama")
    assert (facts.license, facts.context, facts.n_layers, facts.n_vocab) == ("mit", 4096, 4, 3)
    assert (facts.n_params, facts.size, facts.bits_per_weight, facts.quantization) == (688, 2752, 32.0, "F32")
    assert facts.file_size == path.stat().st_size
    assert facts.experts == (4, 2)
    assert facts.sampling == {"temperature": 0.95, "top_k": 20, "repeat_last_n": 64}
    assert (facts.chat_template, facts.chat_templates) == ("{{ x }}", {"": "{{ x }}", "rag": "{{ y }}"})
    assert [(g.name, g.n_tensors, g.n_params, g.n_bytes, g.types) for g in facts.groups] == [
        ("token embeddings", 1, 160, 640, {"F32": 1}),
        ("routed experts", 1, 512, 2048, {"F32": 1}),
        ("norms", 1, 16, 64, {"F32": 1}),
    ]


def test_the_mix_goes_by_the_files_name_for_it(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": (16, 10)}
    assert read_facts(write_gguf(tmp_path / "a", "llama", tensors, general__file_type=15)).quantization == "Q4_K_M"
    assert read_facts(write_gguf(tmp_path / "b", "llama", tensors, general__file_type=1024)).quantization == "F32"


@pytest.mark.parametrize(
    ("kind", "metadata"),
    [
        ("vocabulary", {"tokenizer__ggml__tokens": ["a"]}),
        ("projector", {"general__type": "mmproj"}),
        ("adapter", {"general__type": "adapter"}),
        ("imatrix", {"general__type": "imatrix"}),
        ("model", {}),
    ],
)
def test_kinds_of_files(tmp_path: Path, kind: str, metadata: dict[str, Any]) -> None:
    facts = read_facts(write_gguf(tmp_path / "m.gguf", "llama", **metadata))
    assert (facts.kind, facts.quantization) == (kind, "")


def test_older_projectors_have_no_type(tmp_path: Path) -> None:
    assert read_facts(write_gguf(tmp_path / "m.gguf", "clip", {"v.blk.0.attn_q.weight": (4, 4)})).kind == "projector"


def test_a_file_that_says_nothing_is_read_all_the_same(tmp_path: Path) -> None:
    facts = read_facts(write(tmp_path, [u32("x", 1)]))
    assert (facts.architecture, facts.title, facts.kind, facts.context) == ("", "", "model", None)
    assert (facts.kv, facts.groups, facts.bits_per_weight, facts.sampling, facts.experts) == (None, (), 0.0, {}, None)


def test_values_of_the_wrong_kind_are_as_good_as_absent(tmp_path: Path) -> None:
    entries = [u32("general.architecture", 3), u32("general.name", 3), entry("general.file_type", STRING, text("x"))]
    facts = read_facts(write(tmp_path, entries))
    assert (facts.architecture, facts.title, facts.quantization) == ("", "", "")


def test_the_parts_of_a_split_model_count_together(tmp_path: Path) -> None:
    for number, name in ((1, "token_embd.weight"), (2, "output.weight")):
        write_gguf(tmp_path / f"m-0000{number}-of-00002.gguf", "llama", {name: (8, 4)}, **shape_of())
    facts = read_facts(tmp_path / "m-00001-of-00002.gguf")
    assert [part.name for part in facts.parts] == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    assert (facts.n_params, facts.size, len(facts.groups)) == (64, 256, 2)
    assert facts.file_size == sum(part.stat().st_size for part in facts.parts)


def test_parts_with_the_same_tensors_do_not_belong_together(tmp_path: Path) -> None:
    for number in (1, 2):
        write_gguf(tmp_path / f"m-0000{number}-of-00002.gguf", "llama", {"output.weight": (8, 4)})
    with pytest.raises(ModelFileError, match="same tensors"):
        read_facts(tmp_path / "m-00001-of-00002.gguf")
