"""Doors for chat tests: a fake without any library, and the real one over a template file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pagedrun.errors import GrammarError, TemplateError

if TYPE_CHECKING:
    from pagedrun.native.door import Door, TemplateHandle

PARAMS: dict[str, Any] = {
    "prompt": "PROMPT",
    "generation_prompt": "",
    "grammar": "",
    "grammar_lazy": False,
    "grammar_triggers": [],
    "preserved_tokens": [],
    "additional_stops": [],
    "supports_thinking": False,
    "thinking_start_tag": "",
    "thinking_end_tags": [],
    "parser": "{}",
}
Parse = Callable[[str, bool], Mapping[str, Any]]


class FakeDoor:
    """A ChatDoor whose template answers `params` and remembers what it was asked."""

    def __init__(self, params: Mapping[str, Any] = PARAMS, *, source: str = "TEMPLATE", parse: Parse | None = None):
        self.params = params
        self.source = source
        self.parse_reply = parse
        self.asked: list[Mapping[str, Any]] = []
        self.open_error: TemplateError | None = None
        self.apply_error: TemplateError | None = None

    def template_facts(self, model: Any) -> Mapping[str, Any]:
        return {"source": self.source, "bos": "<s>", "eos": "</s>", "add_bos": True}

    def open_templates(self, model: Any, source: str | None = None) -> FakeDoor:
        if self.open_error:
            raise self.open_error
        self.source = self.source if source is None else source
        return self

    def schema_to_grammar(self, schema: str) -> str:
        if "wat" in schema:
            raise GrammarError("unrecognized type wat")
        return f"root ::= {schema}"

    def info(self) -> Mapping[str, Any]:
        return {"source": self.source, "caps": {}, "supports_thinking": self.params["supports_thinking"]}

    def apply(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append(inputs)
        if self.apply_error:
            raise self.apply_error
        return self.params

    def reply(self, params: Mapping[str, Any]) -> FakeDoor:
        return self

    def parse(self, text: str, *, partial: bool) -> Mapping[str, Any]:
        assert self.parse_reply is not None
        return self.parse_reply(text, partial)


class TemplateFileDoor:
    """The real door with a template given as text and the tokens' texts with it, so that no model is needed."""

    def __init__(self, door: Door, *, bos: str, eos: str) -> None:
        self._door = door
        self._bos = bos
        self._eos = eos
        self.schema_to_grammar = door.schema_to_grammar

    def template_facts(self, model: Any) -> Mapping[str, Any]:
        return {"source": "", "bos": self._bos, "eos": self._eos, "add_bos": False}

    def open_templates(self, model: Any, source: str | None = None) -> TemplateHandle:
        return self._door.open_templates(None, source, bos=self._bos, eos=self._eos)
