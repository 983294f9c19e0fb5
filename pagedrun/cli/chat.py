"""`pagedrun chat`: talk with a model in the terminal, or through a pipe, a line a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pagedrun import hub, units
from pagedrun.cli import console, generate, through
from pagedrun.cli.options import (
    EngineOptions,
    ModelArgument,
    ModelOptions,
    SamplingOptions,
    ServerChoice,
    SessionOption,
    TemplateOptions,
    with_options,
)
from pagedrun.cli.sessions.kept import kept
from pagedrun.errors import ModelError, UsageError

if TYPE_CHECKING:
    from pagedrun.catalog import ModelSpec
    from pagedrun.cli.repl.conversation import Conversation
    from pagedrun.cli.repl.settings import Settings
    from pagedrun.cli.sessions.kept import Kept
    from pagedrun.hub import LocatedModel
    from pagedrun.service import Answerer

#: The model the first-run line points to.
_BIGGER = "qwen3.6-35b"


@with_options
def chat(  # noqa: PLR0913 - each is an option of the command, or a group of them
    model: ModelArgument = None,
    *,
    named: ModelOptions,
    template: TemplateOptions,
    session: SessionOption = None,
    show_thinking: Annotated[bool, typer.Option("--show-thinking", help="Print the thinking, dim.")] = False,
    max_tokens: Annotated[
        int | None, typer.Option("-n", "--max-tokens", metavar="NUMBER", help="Longest answer, in tokens.")
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="A line with speeds after each answer.")] = False,
    sampling: SamplingOptions,
    engine: EngineOptions,
    server: ServerChoice,
) -> None:
    """Talk with a model. /help in the chat lists its commands, Ctrl-C stops an answer, Ctrl-D leaves.

    Without MODEL: that of the session, the one used last, or the small one that comes with pagedrun. Where the input
    is not a terminal each line is a message, and the answers are printed as plain text.

    Exit codes: 0 done, 1 the chat could not start or go on, 2 wrong usage. When the input is not a terminal, also
    that of the first thing that went wrong: 1 an error, 2 a line or /command that makes no sense, 3 something cut
    off by the context; and 130 interrupted.
    """
    if model is not None and named.model_option is not None:
        raise UsageError("MODEL and --model name the same thing: give one of them")
    if max_tokens is not None and max_tokens < 1:
        raise UsageError(f"--max-tokens must be 1 or more, not {max_tokens}")
    chat_flags = {
        "think": template.think,
        "show_thinking": show_thinking or None,
        "max_tokens": max_tokens,
        "stats": stats or None,
    }
    sampling_flags = sampling.params()
    name = model if model is not None else named.model_option
    with kept(session) as keeps:
        conversation = keeps.conversation() if keeps else None
        name = name or (keeps.model if keeps else None) or through.default_model(server)
        located = generate.find_model(name, pull=named.pull)
        with through.open_answerer(located, engine, template, server, session=keeps is not None) as service:
            hub.remember(located)
            if keeps:
                keeps.attach(service, located.name)
            settings = _settings(sampling_flags, chat_flags, service, located.spec)
            code = _talk(service, template.system, settings, located, keeps, conversation)
    raise typer.Exit(code)


def _talk(
    service: Answerer,
    system: str | None,
    settings: Settings,
    located: LocatedModel,
    keeps: Kept | None,
    conversation: Conversation | None,
) -> int:
    from pagedrun.cli.repl import saved
    from pagedrun.cli.repl.conversation import Conversation
    from pagedrun.cli.repl.loop import Chat
    from pagedrun.cli.repl.output import Output
    from pagedrun.cli.repl.prompt import clean, open_reader
    from pagedrun.cli.repl.settings import NAMES
    from pagedrun.cli.repl.state import ChatState
    from pagedrun.paths import state_dir

    _greet(service, located)
    reader = open_reader(state_dir() / "history", {"set": lambda: NAMES, "load": saved.chat_names}, warn=console.warn)
    if reader.interactive:
        console.note("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves")
    conversation = conversation or Conversation()
    if system is not None:
        conversation = conversation.with_system(clean(system))
    if keeps:
        _tell_of_session(keeps.name, conversation)
    state = ChatState(service=service, output=Output(), settings=settings, conversation=conversation, keeps=keeps)
    return Chat(state, reader).run()


def _tell_of_session(name: str, conversation: Conversation) -> None:
    from pagedrun.cli.repl.actions import excerpt

    turns = conversation.turns
    said = f"{units.count(len(turns), 'turn')}; the last: {excerpt(turns[-1].question)}" if turns else "new"
    console.note(console.printable(f"session {name}: {said}"))


def _settings(sampling: Any, chat_flags: dict[str, Any], service: Answerer, spec: ModelSpec | None) -> Settings:
    from pagedrun.cli.repl.settings import SAMPLING, Settings

    given = {name: getattr(sampling, name) for name in SAMPLING}
    given["ignore_eos"] = sampling.ignore_eos or None
    return Settings(
        base=sampling,
        flags={k: v for k, v in (given | chat_flags).items() if v is not None},
        registry=(lambda think: spec.sampling_for(think=think)) if spec else (lambda _think: {}),
        registry_think=spec.think if spec else None,
        model_file=service.model.sampling,
    )


def _greet(service: Answerer, located: LocatedModel) -> None:
    """What answers, and, for who has not chosen, what else could."""
    from pagedrun.gguf_file import split_parts

    model = service.model
    name = located.spec.title if located.spec else ""  # files often carry the name of a training run
    facts = [
        name or f"{model.name} · {model.quantization}",
        units.size(sum(part.stat().st_size for part in split_parts(located.path))),  # as `list` and `pull` say it
        f"context {units.count(service.limits.max_seq_len, 'token')}",
        model.device,
    ]
    console.note(" · ".join(console.printable(fact) for fact in facts if fact))
    if located.origin == "default":
        _show_way_to_bigger()


def _show_way_to_bigger() -> None:
    from pagedrun.catalog import load_catalog

    start = console.typed(f"pagedrun chat {_BIGGER}")
    try:
        hub.locate(_BIGGER)
    except ModelError:
        spec = load_catalog().find(_BIGGER)
        size = f" ({units.size(spec.size)})" if spec.size else ""
        console.note(f"this is the small model that comes with pagedrun; for {_BIGGER}{size} type: {start}")
    else:
        console.note(f"this is the small model that comes with pagedrun; a stronger one is here already: {start}")
