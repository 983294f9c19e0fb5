"""Quantisations by the names that files carry: which one a file is, and which is nearest to the one asked for.

Qwen3.5-4B-Q4_K_M.gguf                        Q4_K_M
Qwen3.6-35B-A3B-UD-Q4_K_M.gguf                UD-Q4_K_M, which also counts as Q4_K_M
gpt-oss-20b-MXFP4.gguf                        MXFP4
model-BF16-00001-of-00003.gguf                BF16, and a part of a split model
Q8_0/model.gguf                               Q8_0: where the name says nothing, its folder in the repository does
"""

from __future__ import annotations

import re

#: Of several quantisations of one model this one is taken when none was named: the usual balance.
PREFERRED = "Q4_K_M"
#: What a model is quantised from, the best first: BF16 holds whatever F16 does of the range, and F32 is twice as large.
ORIGINALS = ("BF16", "F16", "F32")

_QUANT = re.compile(r"(?:UD-)?(?:I?Q\d\w*|TQ\d_\d|MXFP4\w*|BF16|F16|F32)(?=[-.]|$)", re.IGNORECASE)
_PART = re.compile(r"-(?P<number>\d{5})-of-(?P<total>\d{5})\.gguf$", re.IGNORECASE)
_BITS = re.compile(r"Q(\d)")


def quant_of(file: str) -> str | None:
    """The quantisation that a file, or else its folder, is named after, in upper case ("UD-Q4_K_M"); None for none.

    `file`: a name, or a path inside a repository.
    """
    folder, _, name = file.rpartition("/")
    found = _QUANT.findall(name) or _QUANT.findall(folder.rpartition("/")[2])
    return str(found[-1]).upper() if found else None


def is_quant(file: str, wanted: str) -> bool:
    """Whether a file is of that quantisation, with or without a prefix like UD-."""
    found = quant_of(file)
    return found is not None and wanted.upper() in (found, found.removeprefix("UD-"))


def part_of(file_name: str) -> tuple[int, int] | None:
    """(2, 3) for the second of three parts of a split model; None for a model in one file."""
    match = _PART.search(file_name)
    return (int(match["number"]), int(match["total"])) if match else None


def whole_name(file_name: str) -> str:
    """The name without the part's number: the same for all parts of one split model, and for no other file."""
    return _PART.sub(lambda match: f"-of-{match['total']}.gguf", file_name)


def is_projector(file_name: str) -> bool:
    """Whether a file is the image part of a model, which pagedrun does not use."""
    return "mmproj" in file_name.lower()


def distance(quant: str, wanted: str = PREFERRED) -> tuple[float, int, str]:
    """A key that sorts quantisations by how near they are to `wanted`: the nearest is the smallest.

    First by bits a weight (a half step up is nearer than one down: quality over size), then by family, then by name.
    """
    away = bits(quant) - bits(wanted)
    family = 0 if _family(quant) == _family(wanted) else 1
    return (away if away >= 0 else -away + 0.25, family, quant)


def bits(quant: str) -> float:
    """Bits a weight that the name stands for, roughly: 4.5 for Q4_K_M; 16 where the name says nothing."""
    name = quant.upper().removeprefix("UD-")
    if name.startswith("MXFP4"):
        return 4.25
    if name == "F32":
        return 32.0
    match = _BITS.search(name)
    if not match:
        return 16.0
    steps = {"XXS": -0.5, "XS": -0.25, "S": 0.0, "M": 0.5, "NL": 0.5, "L": 0.75, "XL": 1.0, "1": 0.5}
    return int(match[1]) + steps.get(name.rpartition("_")[2], 0.0)


def _family(quant: str) -> str:
    name = quant.upper().removeprefix("UD-")
    return "IQ" if name.startswith("IQ") else "K" if "_K" in name else "other"
