"""What speaks against a quantisation before it begins: refusals, and remarks on what may not be meant."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator

from pagedrun.errors import PagedrunError, UsageError
from pagedrun.gguf_file import read_facts
from pagedrun.gguf_file.purpose import why_no_text
from pagedrun.gguf_file.reader import Tensor
from pagedrun.gguf_file.types import TENSOR_TYPES
from pagedrun.native.quantizer import Plan
from pagedrun.quantize import types
from pagedrun.quantize.beforehand import needs_matrix
from pagedrun.quantize.job import Options
from pagedrun.quantize.source import GgufSource

_OUTPUT = "output.weight"
_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
_BLOCKS = {kind.name: kind.block for kind in TENSOR_TYPES.values()}


def require_text_model(source: GgufSource, option: str) -> None:
    """Raises UsageError unless the model foretells text, which `option` needs."""
    if what := why_no_text(read_facts(source.parts[0])):
        raise UsageError(
            f"{option} needs a model that generates text, and {source.parts[0].name} is {what}",
            hint=f"leave {option} out",
        )


def require_whole_blocks(source: GgufSource, options: Options) -> None:
    """Raises UsageError when the rows of a tensor cannot hold the type that is asked for it.

    For other tensors llama.cpp takes a type that fits.
    """
    tensors = _tensors(source)
    wanted = [("--keep-output", options.keep_output, _OUTPUT)]
    wanted += [("--token-embedding-type", options.embedding_type, name) for name in _EMBEDDINGS]
    for option, kind, name in wanted:
        block = _BLOCKS.get(kind, 1)
        if name in tensors and tensors[name].shape[0] % block:
            fitting = [k for k in ("Q8_0", "Q5_1", "Q4_0", "F16") if not tensors[name].shape[0] % _BLOCKS[k]]
            raise UsageError(
                f"{option}: {kind} holds numbers by {block}, and a row of {name} has {tensors[name].shape[0]:,}",
                hint=f"take one that fits, such as {' or '.join(fitting)}",
            )


def objection(source: GgufSource, plan: Plan, options: Options, *, calibrating: bool = False) -> PagedrunError | None:
    """Why this had better not be done; None when nothing speaks against it.

    calibrating: an importance matrix will be made.
    """
    name = source.parts[0].name
    changed = [tensor for tensor, kind in plan.before.items() if plan.after[tensor] != kind]
    if not changed:
        return UsageError(f"{name} is {options.type} already: nothing would change", hint="choose another --type")
    losses = Counter(plan.before[tensor] for tensor in changed if types.is_quantized(plan.before[tensor]))
    if losses and not options.force:
        kind, count = losses.most_common(1)[0]
        return UsageError(
            f"{name} is quantised already ({count} {'tensor is' if count == 1 else 'tensors are'} {kind}): a second "
            "time it loses more than from the original",
            hint="start from an F16 or BF16 file, or do it all the same with --force",
        )
    if options.imatrix is not None:
        return _of_matrix(source, plan, options, changed)
    if plan.needs_imatrix and not calibrating:
        asked = [kind for _, kind in options.tensor_types if kind in types.NEED_IMATRIX]
        return needs_matrix(asked[0] if asked else options.type)
    return None


def _of_matrix(source: GgufSource, plan: Plan, options: Options, changed: list[str]) -> UsageError | None:
    """llama.cpp would find the same, once it has come to that tensor."""
    from pagedrun.native.imatrix import load_imatrix

    assert options.imatrix is not None
    values = load_imatrix(options.imatrix).values
    tensors = _tensors(source)
    hint = "make one for this model with --calibrate TEXT"
    weights = [name for name in changed if name not in _EMBEDDINGS]
    for name in weights:
        n_experts = tensors[name].shape[2] if len(tensors[name].shape) > 2 else 1
        needed = tensors[name].shape[0] * n_experts
        if name in values and values[name].size != needed:
            found = f"{values[name].size:,} values for {name}, which needs {needed:,}"
            return UsageError(f"the importance matrix belongs to another model: {found}", hint=hint)
    missing = [name for name in weights if name not in values and name != _OUTPUT]
    needy = [name for name in missing if _needs_matrix(plan.after[name], options)]
    if missing and (needy or not any(name in values for name in weights)):
        return UsageError(
            f"the importance matrix has nothing for {(needy or missing)[0]}",
            hint="is it of this model? Calibrate with more text, or choose a type with more bits",
        )
    return None


def _needs_matrix(kind: str, options: Options) -> bool:
    return kind in types.NEED_IMATRIX or (kind == "Q2_K" and options.type == "Q2_K_S")


def remarks(plan: Plan, options: Options) -> Iterator[str]:
    """What may not be what was meant, one sentence each."""
    made = {kind for name, kind in plan.after.items() if plan.before[name] != kind}
    for kind in types.FOR_TRAINED_SO:
        if kind in made:
            yield f"{kind} is for models that were trained with such weights; others talk nonsense with it"
    if options.keep_output and _OUTPUT not in plan.after:
        yield "--keep-output changes nothing: the model has no output tensor of its own, the embeddings serve for it"
    if options.embedding_type and not any(name in plan.after for name in _EMBEDDINGS):
        yield "--token-embedding-type changes nothing: the model has no token embeddings"
    taken: set[str] = set()
    for pattern, kind in options.tensor_types:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                matching = {name for name in plan.after if re.search(pattern.lower(), name)}
        except (re.error, Warning):  # llama.cpp's dialect is another one
            continue
        if why := _why_nothing(plan, options, matching, matching - taken, kind):
            yield f"--tensor-type {pattern}={kind.lower()} {why}"
        taken |= matching


def _why_nothing(plan: Plan, options: Options, matching: set[str], left: set[str], kind: str) -> str:
    if not matching:
        return "matches no tensor"
    if options.type in types.FLOATS:
        return f"changes nothing: with --type {options.type} nothing is quantised"
    if not left:
        return "changes nothing: an earlier --tensor-type has all tensors that it matches"
    if all(plan.after[name] == plan.before[name] != kind for name in left):
        return "changes nothing: llama.cpp leaves these tensors as they are"
    return ""


def _tensors(source: GgufSource) -> dict[str, Tensor]:
    return {tensor.name: tensor for tensor in read_facts(source.parts[0]).tensors}
