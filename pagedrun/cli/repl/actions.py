"""What each /command does. An action may answer with what the loop is to do next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pagedrun import units
from pagedrun.cli import console, pages
from pagedrun.cli.repl import commands, saved
from pagedrun.cli.repl.conversation import Conversation
from pagedrun.cli.repl.settings import CHAT
from pagedrun.cli.repl.state import ChatState
from pagedrun.errors import UsageError


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the model `question` after `conversation`, which replaces the present one if an answer comes."""

    conversation: Conversation
    question: str


@dataclass(frozen=True, slots=True)
class Leave:
    """End the chat."""


Next = Ask | Leave | None


def run(state: ChatState, line: str) -> Next:
    """Do what a line with a /command says. Raises UsageError and what the command raises."""
    command, argument = commands.parse(line)
    return ACTIONS[command.name](state, argument)


def _help(state: ChatState, _: str) -> Next:
    state.output.table(commands.help_rows())
    state.output.line("")
    state.output.table(commands.KEYS)
    return None


def _clear(state: ChatState, _: str) -> Next:
    state.conversation = state.conversation.clear()
    state.saved_as = None
    console.note("a new conversation" + (", same system prompt" if state.conversation.system else ""))
    return None


def _system(state: ChatState, text: str) -> Next:
    if not text:
        state.output.line(state.conversation.system or "(no system prompt)")
        return None
    state.conversation = state.conversation.with_system("" if text == "-" else text)
    console.note(
        "no system prompt from now on" if text == "-" else "system prompt set; it counts from the next answer on"
    )
    return None


def _regenerate(state: ChatState, _: str) -> Next:
    before = state.conversation.undo()
    return Ask(before, state.conversation.turns[-1].question)


def _undo(state: ChatState, _: str) -> Next:
    before = state.conversation.undo()
    console.note(f"taken back: {excerpt(state.conversation.turns[-1].question)}")
    state.conversation = before
    return None


def _drop(state: ChatState, text: str) -> Next:
    conversation = state.conversation
    if text:
        if not text.isdecimal():
            raise UsageError(f"/drop takes a number of turns, not {text!r}")
        count = int(text)
    else:
        plan = state.plan_drop(conversation)
        if plan is None:
            raise UsageError("there is nothing to drop")
        count = plan.turns
    before = state.used()
    state.conversation = conversation.drop(count)
    console.note(dropped(count, before - state.used()))
    return None


def _save(state: ChatState, name: str) -> Next:
    def may_replace(path: Path) -> bool:
        if path == state.saved_as:
            return True
        return state.confirm is not None and state.confirm(f"There already is a chat named {name}. Replace it?")

    model = state.service.model.name
    path = state.saved_as = saved.save(state.conversation, name, model=model, may_replace=may_replace)
    console.note(f"saved to {path}")
    return None


def _load(state: ChatState, name: str) -> Next:
    if not name:
        names = saved.chat_names()
        state.output.line("\n".join(names) if names else "(none is saved)")
        return None
    state.conversation = saved.load(name)
    state.saved_as = saved.chat_path(name)
    turns = state.conversation.turns
    console.note(
        f"{units.count(len(turns), 'turn')} loaded" + (f"; the last: {excerpt(turns[-1].question)}" if turns else "")
    )
    return None


def _set(state: ChatState, text: str) -> Next:
    name, _, value = text.replace("=", " ", 1).partition(" ")
    if not name:
        rows = [(s.name, s.value, s.origin) for s in state.settings]
        state.output.table(rows)
        return None
    shown = state.settings.set(name, value.strip()) if value.strip() else state.settings.show(name)
    state.output.line(f"{shown.name} = {shown.value} ({shown.origin})")
    if not value and shown.name in CHAT:
        state.output.line(CHAT[shown.name][1])
    return None


def _stats(state: ChatState, _: str) -> Next:
    on_gpu = state.service.model.on_gpu
    used, kv = min(state.used(), state.context_size), state.service.kv
    rows = state.stats.rows(used=used, size=state.context_size, on_gpu=on_gpu, kv=kv, pid=state.service.pid)
    state.output.table([*rows, *pages.kept_rows(state.service.keeper)])
    return None


def _exit(_state: ChatState, _: str) -> Next:
    return Leave()


ACTIONS: dict[str, Callable[[ChatState, str], Next]] = {
    "help": _help,
    "clear": _clear,
    "system": _system,
    "regenerate": _regenerate,
    "undo": _undo,
    "drop": _drop,
    "save": _save,
    "load": _load,
    "set": _set,
    "stats": _stats,
    "exit": _exit,
}


def dropped(turns: int, tokens: int) -> str:
    """What is said after turns were dropped."""
    which = "turn is" if turns == 1 else f"{turns} turns are"
    return f"the oldest {which} no longer sent to the model: {units.count(tokens, 'token')} freed"


def excerpt(text: str, width: int = 40) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(console.printable(text).split())
    return line if len(line) <= width else line[: width - 1] + "…"
