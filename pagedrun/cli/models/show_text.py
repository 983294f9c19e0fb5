"""What `pagedrun show` prints for people."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pagedrun import memory
from pagedrun.catalog import ModelSpec
from pagedrun.cli import console, table
from pagedrun.errors import ModelError
from pagedrun.gguf_file import KvFacts, ModelFacts, Stored, why_no_text
from pagedrun.gguf_file.reader import Value
from pagedrun.gguf_file.types import ValueType
from pagedrun.hub.places import TITLES, Place
from pagedrun.units import count, size

KV_TYPES = ("f16", "q8_0", "q4_0")

_USES = {
    "vocabulary": ": it cannot generate text",
    "projector": ", which pagedrun does not use",
    "adapter": ", which pagedrun does not use",
    "imatrix": ", for: pagedrun quantize --imatrix",
}
_LABEL = 18  # columns of the labels
_LONGEST = 100  # characters of one value among the metadata


@dataclass(frozen=True, slots=True)
class Shown:
    """A model: of the registry (spec), on this machine (facts), or both.

    free: memory of this machine. place: whose folder the file lies in.
    """

    name: str
    spec: ModelSpec | None
    facts: ModelFacts | None
    free: memory.FreeMemory
    place: Place = "elsewhere"

    @property
    def file_size(self) -> int | None:
        """Bytes of all its files."""
        return self.facts.file_size if self.facts else self.spec.size if self.spec else None

    @property
    def context(self) -> int | None:
        """Tokens it was trained for."""
        return (self.facts.context if self.facts else None) or (self.spec.context if self.spec else None)

    @property
    def license(self) -> str | None:
        """The registry's, which was checked, before the file's."""
        return (self.spec.license if self.spec else None) or (self.facts.license if self.facts else None)

    @property
    def fit(self) -> memory.Fit | None:
        """Whether it fits this machine now; None where its size is not known, or it is nothing to load."""
        if self.file_size is None or (self.facts and self.facts.kind != "model"):
            return None
        return memory.fit(self.file_size, self.free)

    @property
    def kv(self) -> KvFacts | None:
        """What conversations take; from the registry alone the recurrent state is not known."""
        if self.facts:
            return self.facts.kv if self.facts.kind == "model" else None
        known = self.spec.kv if self.spec else None
        if known is None:
            return None
        elements = 2 * known.heads * known.head_dim
        return KvFacts(
            full_layers=known.layers,
            full_elements=known.layers * elements,
            window_layers=known.sliding_layers,
            window_elements=known.sliding_layers * elements,
            window=known.window,
            state_bytes=None,
        )

    @property
    def template(self) -> str | None:
        """The chat template that is used: the registry's in place of the file's."""
        return (self.spec.chat_template if self.spec else None) or (self.facts.chat_template if self.facts else None)


def print_overview(shown: Shown) -> None:
    """Everything that fits on a screen. Raises OutputError."""
    width = shutil.get_terminal_size().columns if console.is_terminal(sys.stdout) else 0
    table.print_text("\n".join(line for label, value in _lines(shown) for line in _wrapped(label, value, width)))
    if shown.facts and shown.facts.tensors:
        table.print_text("")
        _print_groups(shown.facts)


def _wrapped(label: str, value: str, width: int) -> list[str]:
    """The label and its value, on a terminal wrapped to its width; the file's path stays whole, to be copied."""
    text = " ".join(console.printable(value).splitlines())
    lines = textwrap.wrap(text, max(width - _LABEL, 40), break_long_words=False, break_on_hyphens=False)
    first, *others = lines if width and lines and label != "file" else [text]
    return [f"{label:<{_LABEL}}{first}", *(" " * _LABEL + line for line in others)]


def print_tensors(shown: Shown) -> None:
    """A line for each tensor. Raises ModelError when the file is not here."""
    rows = [(t.name, t.group, t.type, " x ".join(map(str, t.shape)), size(t.n_bytes)) for t in _facts(shown).tensors]
    table.print_table(("TENSOR", "GROUP", "TYPE", "SHAPE", "SIZE"), rows, right={"SIZE"})


def print_metadata(shown: Shown) -> None:
    """A line for each entry, long values shortened. Raises ModelError when the file is not here."""
    facts = _facts(shown)
    table.print_table(("KEY", "VALUE"), [(key, _short(facts, key, value)) for key, value in facts.metadata.items()])


def print_template(shown: Shown) -> None:
    """The chat template as it is. Raises ModelError when there is none, or the file that has it is not here."""
    text = shown.template
    if text is None:
        _facts(shown)
        raise ModelError(f"{shown.name} has no chat template", hint="give one to chat with --chat-template FILE")
    table.print_text(console.printable(text) if console.is_terminal(sys.stdout) else text)


def _facts(shown: Shown) -> ModelFacts:
    if shown.facts is None:
        raise ModelError(f"{shown.name} is not on this machine", hint=f"run: pagedrun pull {shown.name}")
    return shown.facts


def _lines(shown: Shown) -> Iterator[tuple[str, str]]:
    """Label and value of each line."""
    spec, facts = shown.spec, shown.facts
    if not facts or shown.name != str(facts.parts[0]):
        yield "name", shown.name
    title = spec.title if spec else facts.title if facts else ""
    if title:
        yield "title", title
    yield from _file_lines(shown)
    if facts and facts.kind != "imatrix":
        yield from _weight_lines(facts)
    if shown.context:
        yield "context", count(shown.context, "token")
    if facts and facts.n_vocab:
        yield "vocabulary", count(facts.n_vocab, "token")
    if shown.kv:
        yield from _kv_lines(shown.kv, shown.context)
    elif facts and facts.kind == "model":
        yield "KV cache", "not known: the file does not say"
    yield from _use_lines(shown)
    if shown.fit:
        yield "this machine", str(shown.fit)
    elif shown.fit is not None:
        yield "this machine", f"does not fit: {shown.fit}"


def _file_lines(shown: Shown) -> Iterator[tuple[str, str]]:
    spec, facts = shown.spec, shown.facts
    if spec and not spec.source:
        yield "made from", spec.name
    if not facts:
        if spec:
            yield "source", f"{spec.source}, {spec.file}"
            yield "size", size(spec.size) if spec.size else "not known"
        return
    yield "file", str(facts.parts[0])
    parts = f", in {count(len(facts.parts), 'part')}" if len(facts.parts) > 1 else ""
    yield "size", size(facts.file_size) + parts
    if what := why_no_text(facts):
        yield "kind", what + _USES.get(facts.kind, ": it does not generate text")
    if shown.place != "elsewhere":
        yield "place", TITLES[shown.place]


def _weight_lines(facts: ModelFacts) -> Iterator[tuple[str, str]]:
    yield "architecture", facts.architecture or "not said in the file"
    if facts.n_params:
        yield "parameters", count(facts.n_params)
    if facts.quantization:
        yield "quantisation", f"{facts.quantization}, {facts.bits_per_weight:.2f} bits per weight"
    if facts.n_layers:
        yield "layers", count(facts.n_layers)
    if facts.experts:
        yield "experts", f"{count(facts.experts[0])} in a layer, {count(facts.experts[1])} of them used for a token"


def _kv_lines(kv: KvFacts, context: int | None) -> Iterator[tuple[str, str]]:
    about = "" if kv.accuracy == "exact" else f"{kv.accuracy} "
    if kv.full_layers:
        layers = f", in {count(kv.full_layers, 'layer')}"
        yield "KV per token", about + _by_type({t: kv.bytes_per_token(t) for t in KV_TYPES}) + layers
    if kv.window_layers:
        yield "sliding window", f"{count(kv.window, 'token')}, in {count(kv.window_layers, 'more layer')}"
    if kv.recurrent_layers:
        state = f"{size(kv.state_bytes)} a conversation" if kv.state_bytes is not None else "of unknown size"
        yield "recurrent state", f"{state}, in {count(kv.recurrent_layers, 'layer')}"
    if context and (kv.full_layers or kv.window_layers):
        yield "full context", about + _by_type({t: kv.bytes_for(context, t) for t in KV_TYPES})
    elif not (kv.full_layers or kv.window_layers or kv.recurrent_layers):
        yield "KV cache", "none: it reads a text at once"


def _by_type(n_bytes: Mapping[str, float]) -> str:
    return ", ".join(f"{size(value)} ({kv_type})" for kv_type, value in n_bytes.items())


def _use_lines(shown: Shown) -> Iterator[tuple[str, str]]:
    spec, facts = shown.spec, shown.facts
    if spec and spec.task != "generate":
        yield "task", spec.task
    for mode, settings in (spec.sampling if spec else {}).items():
        yield "sampling", _settings(settings) + (f" (registry, {mode})" if mode else " (registry)")
    if facts and facts.sampling:
        yield "sampling", f"{_settings(facts.sampling)} (file)"
    if spec and spec.think is not None:
        yield "thinking", "on, unless --no-think" if spec.think else "off, unless --think"
    yield "licence", shown.license or "not known"
    if shown.template is not None or (facts and facts.kind == "model"):
        yield "chat template", _about_template(shown)


def _settings(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _about_template(shown: Shown) -> str:
    if shown.template is None:
        return "none"
    whose = "the registry's" if shown.spec and shown.spec.chat_template else "the file's"
    others = sorted(name for name in (shown.facts.chat_templates if shown.facts else {}) if name)
    more = f"; the file also has: {', '.join(others)}" if others else ""
    return f"{whose}, {count(len(shown.template.splitlines()), 'line')}{more}"


def _print_groups(facts: ModelFacts) -> None:
    rows = [
        (
            group.name,
            count(group.n_tensors),
            count(group.n_params),
            ", ".join(f"{name} x {n}" for name, n in group.types.items()),
            size(group.n_bytes),
            f"{100 * group.n_bytes / max(facts.size, 1):.1f} %",
        )
        for group in facts.groups
    ]
    right = {"TENSORS", "PARAMETERS", "SIZE", "SHARE"}
    table.print_table(("GROUP", "TENSORS", "PARAMETERS", "TYPES", "SIZE", "SHARE"), rows, right=right)


def _short(facts: ModelFacts, key: str, value: Value) -> str:
    if not isinstance(value, Stored):
        return _cut(_plain(value), _LONGEST)
    if not value.is_array:
        return f"a text of {size(value.count)}"
    elements = facts.header.elements(key, 4)
    if value.type is ValueType.STRING:
        what, first = "text", [repr(_cut(str(element), 20)) for element in elements]
    else:
        what, first = value.type.name.lower(), [_plain(element) for element in elements]
    return f"{count(value.count)} x {what}: {', '.join(first)}" + (", ..." if value.count > 4 else "")


def _plain(value: Value) -> str:
    """Numbers of 32 bits as they were meant: 1e-05, not 9.999999747378752e-06."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."
