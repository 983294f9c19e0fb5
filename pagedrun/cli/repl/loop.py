"""The chat itself: read a line, do what it says, show the answer, keep it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from pagedrun import units
from pagedrun.cli import console, generate
from pagedrun.cli.repl import actions, commands
from pagedrun.cli.repl.answer import Said, follow
from pagedrun.cli.repl.context import DropPlan, Room
from pagedrun.cli.repl.conversation import Conversation, Turn
from pagedrun.cli.repl.prompt import CommandInstead, LineReader
from pagedrun.cli.repl.state import ChatState
from pagedrun.errors import ContextLengthError, EngineError, OutputError, PagedrunError
from pagedrun.request import FinishReason

if TYPE_CHECKING:
    from pagedrun.request import GenerationRequest

#: The exit code when the context cut something off.
CUT_OFF = 3
_TWICE_S = 1.5
#: An answer that ended so may be impossible to parse (half a tool call); its text is kept all the same.
_UNFINISHED = (FinishReason.CANCELLED, FinishReason.LENGTH, FinishReason.CONTEXT)


class Chat:
    """Runs until the user leaves or the input ends."""

    def __init__(self, state: ChatState, reader: LineReader, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.state = state
        self._reader = reader
        self._clock = clock
        self._last_interrupt = float("-inf")
        self._problem = 0
        self._next_line = ""  # given already, in answer to a question
        state.confirm = reader.confirm if reader.interactive else None

    def run(self) -> int:
        """The exit code: 0; for a pipe, that of the first thing that went wrong, as nobody saw it happen."""
        while True:
            try:
                line = self._next_line or self._reader.read()
                self._next_line = ""
                if line.strip() and self._leaves(line):
                    break
            except EOFError:
                break
            except KeyboardInterrupt:
                if not self._reader.interactive:
                    raise
                self._interrupted()
            except CommandInstead as e:
                self._next_line = e.line
            except OutputError:
                raise
            except PagedrunError as e:
                console.show_error(e)
                self._remember(CUT_OFF if isinstance(e, ContextLengthError) else e.exit_code)
        self._save_session()
        return 0 if self._reader.interactive else self._problem

    def _leaves(self, line: str) -> bool:
        """Do what a line says; whether it says to leave."""
        if commands.is_command(line):
            before = self.state.conversation
            following = actions.run(self.state, line)
            if self.state.conversation is not before:
                self._save_changed()
        else:
            following = actions.Ask(self.state.conversation, line.strip())
        if isinstance(following, actions.Ask):
            self._ask(following.conversation, following.question)
        return isinstance(following, actions.Leave)

    def _interrupted(self) -> None:
        """Ctrl-C at the prompt: the line is gone already; who presses it twice wants to leave."""
        now = self._clock()
        if now - self._last_interrupt < _TWICE_S:
            console.note("Ctrl-D or /exit leaves")
        self._last_interrupt = now

    def _ask(self, conversation: Conversation, question: str) -> None:
        request, rendered = self.state.request(conversation, question)
        roomy = self._make_room(conversation, question, self._room(request))
        if roomy is not conversation:
            conversation = roomy
            request, rendered = self.state.request(conversation, question)
        view = self.state.output.view(show_thinking=self.state.settings.value("show_thinking"))
        answer = generate.ask(self.state.service, request, rendered)
        try:
            said = follow(answer, view)
        except BaseException:
            answer.cancel()  # nobody is left to read it, and the next question would have to wait for it
            raise
        if said.finished is None or (said.error and said.finished.reason not in _UNFINISHED):
            raise said.error or EngineError("the answer did not end")
        self.state.stats.add(said.finished)
        before = self.state.conversation
        self._keep(conversation, question, said, said.finished.reason)
        if self.state.keeps is not None and self.state.conversation is not before:
            self.state.keeps.save(self.state.conversation, [*request.prompt, *answer.tokens])
        if said.interrupted and not self._reader.interactive:
            raise KeyboardInterrupt

    def _save_changed(self) -> None:
        """A command has changed the conversation."""
        if self.state.keeps is None:
            return
        tokens: tuple[int, ...] = ()
        with suppress(PagedrunError):  # a template that fails says so when something is asked
            tokens = self.state.prompt(self.state.conversation)
        self.state.keeps.changed(self.state.conversation, tokens)

    def _save_session(self) -> None:
        if self.state.keeps is None:
            return
        try:
            self.state.keeps.finish(self.state.conversation)
        except PagedrunError as e:
            console.show_error(e)
            self._remember(e.exit_code)

    def _keep(self, conversation: Conversation, question: str, said: Said, end: FinishReason) -> None:
        if not (said.content or said.reasoning):
            how = "stopped before anything was said" if end is FinishReason.CANCELLED else "the model gave no answer"
            console.note(f"{how}; the question is not kept")
            if end is FinishReason.CONTEXT:
                self._cut_off()
            return
        turn = Turn(question=question, answer=said.content, reasoning=said.reasoning, end=end)
        self.state.conversation = conversation.add(turn)
        if end is FinishReason.CANCELLED:
            console.note("stopped; what was said is kept")
        elif end is FinishReason.LENGTH:
            console.note(f"stopped at {units.count(self.state.settings.value('max_tokens') or 0, 'token')}, as set")
        elif not said.content:
            console.note("the model gave no answer")
        if self.state.settings.value("stats"):
            console.note(self.state.stats.summary())
        if end is FinishReason.CONTEXT:
            self._cut_off()

    def _make_room(self, conversation: Conversation, question: str, room: Room) -> Conversation:
        """The conversation to send: the same, or with its oldest turns dropped after asking.

        Warns when an answer may be cut off. Raises ContextLengthError when the prompt does not fit.
        """
        if not room.is_low:
            return conversation
        plan = None
        if room.is_too_little or self.state.settings.value("auto_drop"):
            plan = self.state.plan_drop(conversation, question)
            if plan and self._may_drop(conversation, plan, _why_full(room)):
                return conversation.drop(plan.turns)
        if not room.fits:
            raise ContextLengthError(room.used, room.size, hint=_way_out(plan))
        console.warn(
            f"the context is filling up: {_of(room)} used, {units.count(room.left)} left for the answer"
            + ("; /drop makes room" if conversation.active else "")
        )
        return conversation

    def _room(self, request: GenerationRequest) -> Room:
        """How much the context has left; asked again before it is said to be full."""
        used = len(request.prompt)
        if Room(used, self.state.context_size).is_low:
            self.state.service.refresh()
        return Room(used, self.state.context_size)

    def _cut_off(self) -> None:
        """The answer ended because the context is full: say so, and offer to make room for what follows."""
        console.warn(f"the answer was cut off: the context of {units.count(self.state.context_size, 'token')} is full")
        self._remember(CUT_OFF)
        conversation = self.state.conversation
        plan = self.state.plan_drop(conversation)
        if plan and self._may_drop(conversation, plan, "to go on, there must be room"):
            self.state.conversation = conversation.drop(plan.turns)
        elif plan is None or not self._reader.interactive:
            console.note(_way_out(plan))

    def _may_drop(self, conversation: Conversation, plan: DropPlan, why: str) -> bool:
        """Whether to drop as planned: because it is set so, or because the user says yes. Never silently."""
        if not self.state.settings.value("auto_drop"):
            if not self._reader.interactive:
                return False
            first, last = conversation.active[0], conversation.active[plan.turns - 1]
            which = f"“{actions.excerpt(first.question)}”"
            if plan.turns > 1:
                which += f" to “{actions.excerpt(last.question)}”"
            console.warn(why)
            console.note(f"the oldest {units.count(plan.turns, 'turn')}: {which}")
            if not self._reader.confirm(
                f"Drop {'it' if plan.turns == 1 else 'them'} ({units.count(plan.frees, 'token')})?"
            ):
                return False
        console.note(actions.dropped(plan.turns, plan.frees))
        return True

    def _remember(self, code: int) -> None:
        self._problem = self._problem or code


def _of(room: Room) -> str:
    return f"{units.count(room.used)} of {units.count(room.size, 'token')}"


def _why_full(room: Room) -> str:
    if room.fits:
        return f"the context is full: {_of(room)} used"
    size = units.count(room.size, "token")
    return f"this does not fit: with it the prompt has {units.count(room.used)} tokens, and the context holds {size}"


def _way_out(plan: DropPlan | None) -> str:
    if plan is None:
        return "shorten the message, or start with a larger --max-seq-len"
    freed = f"/drop {plan.turns} frees {units.count(plan.frees, 'token')}"
    return f"{freed}; /set auto_drop on does it whenever it is needed; /clear starts over"
