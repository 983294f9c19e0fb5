"""What `pagedrun show --json` prints: one object. Sizes are bytes; what is not known is null."""

from __future__ import annotations

import math
from typing import Any

from pagedrun.cli.models.show_text import KV_TYPES, Shown
from pagedrun.gguf_file import KvFacts, ModelFacts, Stored
from pagedrun.gguf_file.reader import Value

_FIRST = 10  # elements of an array


def to_json(shown: Shown, *, tensors: bool, template: bool, metadata: bool) -> dict[str, Any]:
    """The object; the flags add what they name."""
    spec, facts, fit = shown.spec, shown.facts, shown.fit
    found: dict[str, Any] = {
        "name": shown.name,
        "title": spec.title if spec else facts.title if facts else "",
        "here": facts is not None,
        "source": f"{spec.source}/{spec.file}" if spec and spec.source else None,
        "made_from": spec.name if spec and not spec.source else None,
        "place": shown.place if facts else None,
        "parts": [str(part) for part in facts.parts] if facts else [],
        "size": shown.file_size,
        **_weights(facts),
        "context": shown.context,
        "kv": _kv(shown.kv, shown.context),
        "sampling": {
            "registry": {mode or "any": dict(values) for mode, values in (spec.sampling if spec else {}).items()},
            "file": facts.sampling if facts else {},
        },
        "think": spec.think if spec else None,
        "task": spec.task if spec else None,
        "license": shown.license,
        "template": {
            "from": None if shown.template is None else "registry" if spec and spec.chat_template else "file",
            "names": sorted(facts.chat_templates) if facts else [],
        },
        "fit": None if fit is None else {"fits": bool(fit), "where": fit.where, "missing": fit.missing},
    }
    if template:
        found["template"]["text"] = shown.template
    if facts and tensors:
        found["tensors"] = [
            {"name": t.name, "group": t.group, "type": t.type, "shape": t.shape, "size": t.n_bytes, "offset": t.offset}
            for t in facts.tensors
        ]
    if facts and metadata:
        found["metadata"] = {key: _value(facts, key, value) for key, value in facts.metadata.items()}
    return found


def _weights(facts: ModelFacts | None) -> dict[str, Any]:
    return {
        "kind": facts.kind if facts else None,
        "architecture": facts.architecture if facts else None,
        "parameters": facts.n_params if facts else None,
        "quantization": (facts.quantization or None) if facts else None,
        "bits_per_weight": round(facts.bits_per_weight, 4) if facts else None,
        "weights_size": facts.size if facts else None,
        "layers": facts.n_layers if facts else None,
        "vocabulary": facts.n_vocab if facts else None,
        "experts": {"count": facts.experts[0], "used": facts.experts[1]} if facts and facts.experts else None,
        "groups": [
            {"name": g.name, "tensors": g.n_tensors, "parameters": g.n_params, "types": g.types, "size": g.n_bytes}
            for g in (facts.groups if facts else ())
        ],
    }


def _kv(kv: KvFacts | None, context: int | None) -> dict[str, Any] | None:
    if kv is None:
        return None
    return {
        "layers": kv.full_layers,
        "bytes_per_token": {kv_type: kv.bytes_per_token(kv_type) for kv_type in KV_TYPES},
        "bytes_full_context": {kv_type: kv.bytes_for(context, kv_type) for kv_type in KV_TYPES} if context else None,
        "window_layers": kv.window_layers,
        "window": kv.window or None,
        "recurrent_layers": kv.recurrent_layers,
        "state_bytes": kv.state_bytes,
        "accuracy": kv.accuracy,
    }


def _value(facts: ModelFacts, key: str, value: Value) -> Any:
    if isinstance(value, Stored):
        first = [_number(element) for element in facts.header.elements(key, _FIRST)]
        kind = value.type.name.lower()
        return {"array" if value.is_array else "text": kind, "count": value.count, "first": first}
    return _number(value)


def _number(value: Value) -> Any:
    """JSON has no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
