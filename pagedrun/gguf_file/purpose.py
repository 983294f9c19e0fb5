"""Whether a GGUF file is a model that generates text, and what it is where it is not one.

llama.cpp loads most of these all the same and ends the process once it is asked for a next token; so they are told by
their headers. An architecture's graph in llama.cpp (src/models) has logits or has none; a model for embeddings may
also be one of a common architecture that was trained on: then the file says how it pools, or that it is not causal.
"""

from __future__ import annotations

from pagedrun.gguf_file.facts import Kind, ModelFacts

#: What other kinds of files are, to go behind "it is".
NO_MODELS: dict[Kind, str] = {
    "vocabulary": "a vocabulary without weights",
    "projector": "the image part of a model (mmproj)",
    "adapter": "an adapter (LoRA)",
    "imatrix": "an importance matrix",
}

_EMBEDDING, _DIFFUSION = "a model for embeddings", "a diffusion model"
_DRAFT, _SPEECH = "a draft model, made to go with another one", "a part of a model for speech"
_ARCHITECTURES = {
    **dict.fromkeys(("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert"), _EMBEDDING),
    **dict.fromkeys(("jina-bert-v2", "jina-bert-v3", "gemma-embedding", "llama-embed", "t5encoder"), _EMBEDDING),
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), _DIFFUSION),
    **dict.fromkeys(("eagle3", "dflash", "gemma4-assistant"), _DRAFT),
    **dict.fromkeys(("wavtokenizer-dec", "qwen3tts", "pockettts"), _SPEECH),
    "t5": "a model with an encoder (T5)",
}


def is_embedding(facts: ModelFacts) -> bool:
    """Whether it is a model for embeddings, or a reranker."""
    return why_no_text(facts) == _EMBEDDING


def looks_both_ways(facts: ModelFacts) -> bool:
    """Whether each token of an embedding model sees those behind it too."""
    arch = facts.architecture
    return arch in _ARCHITECTURES or facts.header.metadata.get(f"{arch}.attention.causal") is False


def why_no_text(facts: ModelFacts) -> str | None:
    """What the file is ("a model for embeddings"), where that is nothing that generates text here; None for a model."""
    if facts.kind in NO_MODELS:
        return NO_MODELS[facts.kind]
    arch, header = facts.architecture, facts.header
    if arch in _ARCHITECTURES:
        return _ARCHITECTURES[arch]
    if header.number(f"{arch}.pooling_type") or header.metadata.get(f"{arch}.attention.causal") is False:
        return _EMBEDDING
    if header.text("tokenizer.ggml.model") in ("none", "no_vocab"):
        return "a model without a vocabulary"
    return None
