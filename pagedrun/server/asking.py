"""From what clients ask to requests of the engine. Slow for long prompts: runs beside the event loop."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pagedrun.chat import ChatOptions, Message, RenderedChat
from pagedrun.request import GenerationRequest, Grammar, GrammarKind
from pagedrun.sampling import SamplingParams
from pagedrun.server.answers import Task
from pagedrun.server.errors import invalid, unsupported
from pagedrun.server.functions import with_definitions_apart
from pagedrun.server.schemas import Given, check_schemas
from pagedrun.server.serving import Serving
from pagedrun.server.thinking import NAMES, Names, check_can_think, knows_effort
from pagedrun.server.tokens import tokens_of

#: Tokens of thinking by effort, for models whose template has no such word of its own.
BUDGETS: dict[str, int | None] = {"minimal": 512, "low": 1024, "medium": 8192, "high": None, "xhigh": None}

_SEEDS = 2**32 - 1
#: Rules that take several calls although none were to follow (Hermes' form; Kimi K3), and with one.
_SEVERAL_CALLS = (
    (re.compile(r"^(tool-calls ::= )\(tool-call\?? space\)\+$", re.MULTILINE), r"\1tool-call space"),
    (re.compile(r'^(kimi-k3-tool-call ::= "[^"]*" \([^()]*\))\+', re.MULTILINE), r"\1"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A chat to be answered, whatever API it came through.

    effort, budget: how much thinking, as a word or in tokens. kwargs: further variables of the template. names: what
    the fields for thinking are called in that API. priority: who has the lower one is served first. schemas: those of
    all tools and of the answer, as they were sent.
    """

    messages: Sequence[Message]
    sampling: SamplingParams
    options: ChatOptions = field(default_factory=ChatOptions)
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    effort: str | None = None
    budget: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    logprobs: int | None = None
    priority: int = 0
    names: Names = NAMES
    schemas: Sequence[Given] = ()


def chat_task(serving: Serving, ask: Ask) -> Task:
    """The requests, and parsers for their replies. Raises ApiError, RequestError."""
    options = _options(serving, ask)
    rendered = _rendered(serving, ask, options)
    request = GenerationRequest(
        # Where the vocabulary wants a BOS the template's own was taken out of the prompt.
        prompt=tokens_of(serving, rendered.prompt),
        sampling=recommended(serving, ask.sampling, options.think),
        max_tokens=ask.max_tokens,
        stop=(*rendered.stop, *ask.stop),
        grammar=rendered.grammar if ask.options.parallel_tool_calls else _one_call(rendered.grammar),
        reasoning=rendered.reasoning,
        logprobs=ask.logprobs,
        preserved_tokens=tuple(rendered.preserved_tokens),
        priority=ask.priority,
    )
    parsers = tuple(serving.service.templates.reply_parser(rendered) for _ in range(ask.n))
    return Task(requests=copies(request, ask.n), parsers=parsers)


def _one_call(grammar: Grammar | None) -> Grammar | None:
    """The grammar, with one call where llama.cpp's allows several although it was told not to."""
    if grammar is None or grammar.kind is not GrammarKind.TOOL_CALLS:
        return grammar
    text = grammar.text
    for several, one in _SEVERAL_CALLS:
        text = several.sub(one, text)
    return replace(grammar, text=text)


def render(serving: Serving, ask: Ask) -> RenderedChat:
    """The prompt. Raises ApiError, RequestError."""
    return _rendered(serving, ask, _options(serving, ask))


def _rendered(serving: Serving, ask: Ask, options: ChatOptions) -> RenderedChat:
    check_schemas(serving.service.templates.schema_to_grammar, ask.schemas)
    messages = list(ask.messages)
    if serving.settings.system is not None and not any(m.role == "system" for m in messages):
        messages.insert(0, Message("system", serving.settings.system))
    rendered = serving.service.templates.render(messages, options)
    if options.tool_choice == "required" and (rendered.grammar is None or rendered.grammar.lazy):
        raise unsupported("tool_choice", "cannot be kept: this model's chat template can only leave it to the model")
    return rendered


def _options(serving: Serving, ask: Ask) -> ChatOptions:
    """The template's options, with what was asked for of thinking."""
    kwargs = dict(ask.kwargs)
    think: bool | None = serving.settings.think
    if "enable_thinking" in kwargs:
        think = kwargs.pop("enable_thinking")
        if not isinstance(think, bool):
            raise invalid("'chat_template_kwargs.enable_thinking' must be true or false", "chat_template_kwargs")
    budget, switch = ask.budget, ask.kwargs.get("enable_thinking")
    check_can_think(serving, ask.names, switch=switch, effort=ask.effort, budget=budget)
    if switch is not None and ask.effort is not None and switch == (ask.effort == "none"):
        raise invalid(f"'{ask.names.effort}' and '{ask.names.switch}' exclude each other", ask.names.effort)
    if ask.effort == "none":
        think = False
    elif ask.effort is not None:
        if knows_effort(serving):
            kwargs.setdefault("reasoning_effort", ask.effort)
        else:
            think = True if think is None else think
            budget = BUDGETS[ask.effort] if budget is None else budget
    options = replace(_schema_or_tools(ask.options), tools=with_definitions_apart(ask.options.tools))
    return replace(options, think=think, template_kwargs=kwargs, reasoning_budget=budget)


def _schema_or_tools(options: ChatOptions) -> ChatOptions:
    """The options, without a schema where there has to be a call. Raises ApiError where it would rule calls out."""
    if options.json_schema is None or not options.tools or options.tool_choice == "none":
        return options
    if options.tool_choice == "required":
        return replace(options, json_schema=None)  # the answer is a call
    raise unsupported("tools", "with a schema for the answer needs a 'tool_choice' that says which of both it is to be")


def recommended(serving: Serving, sampling: SamplingParams, think: bool | None) -> SamplingParams:
    """The registry's settings for a model that thinks, or does not, where the client left them open."""
    chosen = serving.settings.sampling_for
    return sampling if chosen is None else sampling.with_defaults(chosen(think))


def copies(request: GenerationRequest, n: int) -> tuple[GenerationRequest, ...]:
    """The request `n` times, each with a seed of its own: the first's, and those that follow."""
    seed = request.sampling.seed
    if n == 1 or seed is None:
        return (request,) * n
    seeds = ((seed + i) % _SEEDS for i in range(n))
    return tuple(replace(request, sampling=replace(request.sampling, seed=s)) for s in seeds)


def raw_grammar(
    serving: Serving, gbnf: str | None, schema: str | None, schemas: Sequence[Given] = ()
) -> Grammar | None:
    """For an answer without a template. Raises ApiError, GrammarError."""
    if gbnf is not None and schema is not None:
        raise invalid("'grammar' and 'response_format' exclude each other", "grammar")
    check_schemas(serving.service.templates.schema_to_grammar, schemas)
    text = gbnf if schema is None else serving.service.templates.schema_to_grammar(schema)
    return None if text is None else Grammar(text=text)
