"""The quantisations that llama.cpp makes, by the names of its tool, and what a user may have meant."""

from __future__ import annotations

from difflib import get_close_matches

from pagedrun.errors import UsageError
from pagedrun.gguf_file.types import TENSOR_TYPES

#: llama_ftype by name, from few bits a weight to many (tools/quantize/quantize.cpp).
FILE_TYPES = {
    "Q1_0": 40,
    "IQ1_S": 24,
    "IQ1_M": 31,
    "TQ1_0": 36,
    "TQ2_0": 37,
    "IQ2_XXS": 19,
    "Q2_0": 41,
    "IQ2_XS": 20,
    "IQ2_S": 28,
    "IQ2_M": 29,
    "Q2_K_S": 21,
    "Q2_K": 10,
    "IQ3_XXS": 23,
    "IQ3_XS": 22,
    "IQ3_S": 26,
    "IQ3_M": 27,
    "Q3_K_S": 11,
    "Q3_K_M": 12,
    "Q3_K_L": 13,
    "IQ4_XS": 30,
    "IQ4_NL": 25,
    "MXFP4_MOE": 38,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q4_K_S": 14,
    "Q4_K_M": 15,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q5_K_S": 16,
    "Q5_K_M": 17,
    "Q6_K": 18,
    "Q8_0": 7,
    "F16": 1,
    "BF16": 32,
    "F32": 0,
}
_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}

#: Nothing is quantised to these: a conversion to GGUF can write them itself.
FLOATS = ("F32", "F16", "BF16")

#: Types of tensors that llama.cpp refuses to make without an importance matrix, and the quantisations made of them.
NEED_IMATRIX = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS")
FILES_NEED_IMATRIX = (*NEED_IMATRIX, "IQ2_M", "Q2_K_S")
#: One to three values a weight: for models that were trained so.
FOR_TRAINED_SO = ("Q1_0", "TQ1_0", "TQ2_0", "Q2_0")

# Numbers as they are, and what only llama.cpp's arithmetic uses: its quantiser writes none of them.
_NOT_WRITTEN = ("F64", "I8", "I16", "I32", "I64", "Q8_1", "Q8_K")


def file_type(text: str) -> str:
    """The name in `FILE_TYPES` that was meant, in any case. Raises UsageError with close matches."""
    name = text.strip().upper()
    name = _ALIASES.get(name, name)
    if name not in FILE_TYPES:
        raise _unknown(f"there is no quantisation {text!r}", name, [*FILE_TYPES])
    return name


def tensor_type(option: str, text: str) -> str:
    """The name of a tensor's type, in any case. Raises UsageError with close matches."""
    names = [kind.name for kind in TENSOR_TYPES.values() if kind.name not in _NOT_WRITTEN]
    name = text.strip().upper()
    if name not in names:
        raise _unknown(f"{option}: there is no type {text!r} for tensors", name, names)
    return name


def is_quantized(tensor_type: str) -> bool:
    """Whether a tensor of that type has lost something to quantisation."""
    return tensor_type not in (*FLOATS, "F64") and not tensor_type.lstrip("I").isdigit()


def _unknown(message: str, name: str, names: list[str]) -> UsageError:
    close = get_close_matches(name, names, n=3)
    return UsageError(message, hint=f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}")
