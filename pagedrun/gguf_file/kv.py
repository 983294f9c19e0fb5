"""What a conversation takes beside the weights: the KV cache, and the state of recurrent layers.

The arithmetic is llama.cpp's (src/llama-hparams.cpp, llama-model.cpp: create_memory, and each file in src/models):

    full attention       every token of the conversation, in each such layer
    sliding window       the last few tokens only
    shared               uses another layer's KV, and has none
    recurrent            one state of fixed size for each conversation
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pagedrun.gguf_file.reader import Header, Stored
from pagedrun.memory import BYTES_PER_ELEMENT

_MAX_LAYERS = 512  # LLAMA_MAX_LAYERS

_NO_CACHE = {
    "bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "eurobert",
    "gemma-embedding", "dream", "llada", "llada-moe", "rnd1", "t5encoder", "wavtokenizer-dec",
}  # fmt: skip
_RECURRENT = {"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"}
#: A layer without KV heads is recurrent.
_HYBRID_BY_HEADS = {
    "jamba", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "kimi-linear", "kimi-k3", "bailingmoe3",
    "nemotron_h", "nemotron_h_moe",
}  # fmt: skip
#: Every so many layers one has full attention.
_HYBRID_BY_INTERVAL = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "minimax-01": 8}
#: llama.cpp keeps something besides keys and values for them, or has other layers than the file says.
_SPECIAL = {
    "deepseek32", "deepseek4", "glm-dsa", "glm5-next", "minimax-m3", "hy_v4", "dots3note", "qwen4exp", "dflash",
    "eagle3", "gemma4-assistant", "graniteswitch", "nanbeige", "hrm_text", "pockettts",
}  # fmt: skip
#: Every how many layers one has full attention, and whether it is the first or the last of them, where the file
#: does not say which (it may: sliding_window_pattern).
_WINDOW_PERIOD: dict[str, tuple[int, bool]] = {
    "afmoe": (4, False), "cohere2": (4, False), "cohere2moe": (4, True), "exaone-moe": (4, False),
    "exaone4": (4, False), "gemma2": (2, False), "gemma3": (6, False), "gemma3n": (5, False), "gpt-oss": (2, False),
    "laguna": (4, True), "llama4": (4, False), "mellum": (4, False), "muse-glimmer": (4, False), "olmo2": (4, False),
    "plamo3": (8, False), "smallthinker": (4, True),
}  # fmt: skip
_WINDOW_DEFAULT = {"gemma2": 4096, "exaone4": 4096, "smallthinker": 4096, "llama4": 8192}


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFacts:
    """Layers by what they keep of a conversation; elements: of K plus V for one token, in all such layers together.

    window: tokens that the layers with one look back. state_bytes: of all recurrent layers, for one conversation; None
    where it cannot be told. accuracy: "at most" where the file names a window and not which layers have it (counted
    without); "about" for architectures with other memory beside.
    """

    full_layers: int = 0
    full_elements: int = 0
    window_layers: int = 0
    window_elements: int = 0
    window: int = 0
    recurrent_layers: int = 0
    state_bytes: int | None = 0
    accuracy: Literal["exact", "at most", "about"] = "exact"

    def bytes_per_token(self, kv_type: str) -> float:
        """What each further token takes, however long the conversation is already. kv_type: as --kv-type."""
        return self.full_elements * BYTES_PER_ELEMENT[kv_type]

    def bytes_for(self, tokens: int, kv_type: str, *, batch: int = 512) -> int:
        """What one conversation of `tokens` takes in all: KV cache, windows, recurrent state.

        batch: tokens decoded at once, which a window has to hold beside its own.
        """
        in_window = min(tokens, -(-(self.window + batch) // 256) * 256)
        elements = self.full_elements * tokens + self.window_elements * in_window
        return int(elements * BYTES_PER_ELEMENT[kv_type]) + (self.state_bytes or 0)


def kv_facts(header: Header) -> KvFacts | None:
    """What conversations take; None where the file says too little."""
    arch = header.text("general.architecture") or ""
    if arch in _NO_CACHE:
        return KvFacts()
    layers = _Layers(header, arch)
    if not 0 < layers.count <= _MAX_LAYERS:
        return None
    if arch in _RECURRENT:
        return KvFacts(recurrent_layers=layers.count, state_bytes=_state_bytes(layers, layers.count))
    if not layers.heads_known:
        return None
    return _facts(layers)


class _Layers:
    """One architecture's metadata: numbers for the whole model, or layer by layer."""

    def __init__(self, header: Header, arch: str) -> None:
        self.arch = arch
        self._header = header
        self.count = self.number("block_count", 0) - self.number("nextn_predict_layers", 0)
        self.heads = self.each("attention.head_count", lambda _: 0)
        self.kv_heads = self.each("attention.head_count_kv", self.heads)
        head_dim = self.number("embedding_length", 0) // max(self.heads(0), 1)
        self.key = self.number("attention.key_length", head_dim)
        self.value = self.number("attention.value_length", head_dim)

    @property
    def heads_known(self) -> bool:
        names = ("attention.head_count", "attention.head_count_kv")
        return any(f"{self.arch}.{name}" in self._header.metadata for name in names)

    def has_array(self, name: str) -> bool:
        return isinstance(self._header.metadata.get(f"{self.arch}.{name}"), Stored)

    def number(self, name: str, default: int) -> int:
        value = self._header.number(f"{self.arch}.{name}")
        return default if value is None or value < 0 else value

    def each(self, name: str, default: Callable[[int], int]) -> Callable[[int], int]:
        """A value for each layer: the file has one for all of them, or an array."""
        if self._header.number(f"{self.arch}.{name}") is not None:
            return lambda _: self.number(name, 0)
        values = self._header.elements(f"{self.arch}.{name}", _MAX_LAYERS)
        numbers = [max(int(v), 0) for v in values if isinstance(v, int)]
        return (lambda layer: numbers[layer] if layer < len(numbers) else 0) if numbers else default

    def elements(self, layer: int, windowed: bool) -> int:
        """K plus V of one token."""
        if self.number("attention.key_length_mla", 0):  # MLA: one compressed row, which K and V are both made from
            return self.kv_heads(layer) * self.key
        key = self.number("attention.key_length_swa", self.key) if windowed else self.key
        value = self.number("attention.value_length_swa", self.value) if windowed else self.value
        return self.kv_heads(layer) * (key + value)


def _facts(layers: _Layers) -> KvFacts:
    shared = layers.number("attention.shared_kv_layers", layers.count - 20 if layers.arch == "gemma3n" else 0)
    recurrent = _is_recurrent(layers)
    window = layers.number("attention.sliding_window", _WINDOW_DEFAULT.get(layers.arch, 0))
    windowed = _is_windowed(layers) if window else None
    full, in_window, states = [], [], 0
    for layer in range(layers.count):
        states += recurrent(layer) or layers.arch == "falcon-h1"
        if recurrent(layer) or layer >= layers.count - shared or layers.kv_heads(layer) == 0:
            continue
        if windowed and windowed(layer):
            in_window.append(layers.elements(layer, True))
        else:
            full.append(layers.elements(layer, False))
    return KvFacts(
        full_layers=len(full),
        full_elements=sum(full),
        window_layers=len(in_window),
        window_elements=sum(in_window),
        window=window if in_window else 0,
        recurrent_layers=states,
        state_bytes=_state_bytes(layers, states) if states else 0,
        accuracy="about" if layers.arch in _SPECIAL else "at most" if window and windowed is None else "exact",
    )


def _is_recurrent(layers: _Layers) -> Callable[[int], bool]:
    if layers.arch in _HYBRID_BY_HEADS:
        no_ff = layers.each("feed_forward_length", lambda _: 0)
        only_ff = layers.arch.startswith("nemotron")  # whose layers are recurrent, attention, or feed-forward alone
        return lambda layer: layers.kv_heads(layer) == 0 and not (only_ff and no_ff(layer))
    if layers.arch in _HYBRID_BY_INTERVAL:
        interval = max(layers.number("full_attention_interval", _HYBRID_BY_INTERVAL[layers.arch]), 1)
        listed = layers.each("attention.recurrent_layers", lambda layer: (layer + 1) % interval)
        return lambda layer: listed(layer) != 0
    return lambda _: False


def _is_windowed(layers: _Layers) -> Callable[[int], bool] | None:
    """Which layers have the sliding window; None when that is not known, and then llama.cpp gives it to none."""
    key = "attention.sliding_window_pattern"
    if layers.has_array(key):
        listed = layers.each(key, lambda _: 0)
        return lambda layer: listed(layer) != 0
    if layers.arch == "lfm2":
        return lambda _: True
    if layers.arch == "exaone4" and layers.count != 64:  # of its sizes only the largest has windows
        return None
    default, full_first = _WINDOW_PERIOD.get(layers.arch, (0, False))
    period = layers.number(key, default)
    full = 0 if full_first else period - 1
    return (lambda layer: layer % period != full) if period > 0 else None


def _state_bytes(layers: _Layers, count: int) -> int | None:
    """Of `count` recurrent layers, for one conversation: the last inputs of the convolution, and the state, as f32."""
    embedding = layers.number("embedding_length", 0)
    kernel = layers.number("ssm.conv_kernel", 0)
    if head := layers.number("wkv.head_size", 0):  # RWKV
        inputs, state = layers.number("token_shift_count", 2) * embedding, embedding * head
    elif cache := layers.number("shortconv.l_cache", 0):  # LFM2
        inputs, state = embedding * (cache - 1), 0
    elif head := layers.number("kda.head_dim", 0):  # Kimi
        inputs, state = 3 * (kernel - 1 if kernel else 3) * layers.heads(0) * head, head * head * layers.heads(0)
    elif layers.arch == "minimax-01":
        inputs, state = 0, layers.key * layers.key * layers.heads(0)
    else:  # Mamba, and the gated delta net of Qwen
        inner, size = layers.number("ssm.inner_size", 0), layers.number("ssm.state_size", 0)
        inputs = max(kernel - 1, 0) * (inner + 2 * layers.number("ssm.group_count", 0) * size)
        state = inner * size
    return 4 * count * (inputs + state) or None
