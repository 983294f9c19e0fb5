"""What a GGUF file says about itself, read without llama.cpp and without trusting the file.

check     whether a file can be a model, from its first bytes; the parts of a split model
types     numbers that stand for types of values, tensors and files
cursor    reading forward, every length checked before it is used
groups    what a tensor is for, by its name
reader    the header of one file: metadata and tensors
kv        what a conversation takes beside the weights
facts     all of a model, in one object
purpose   whether it is a model that generates text, or one for embeddings
"""

from __future__ import annotations

from pagedrun.gguf_file.check import check_file, split_parts
from pagedrun.gguf_file.facts import GroupFacts, ModelFacts, read_facts
from pagedrun.gguf_file.kv import KvFacts
from pagedrun.gguf_file.purpose import is_embedding, why_no_text
from pagedrun.gguf_file.reader import Header, Stored, Tensor, read_header

__all__ = [
    "GroupFacts",
    "Header",
    "KvFacts",
    "ModelFacts",
    "Stored",
    "Tensor",
    "check_file",
    "is_embedding",
    "read_facts",
    "read_header",
    "split_parts",
    "why_no_text",
]
