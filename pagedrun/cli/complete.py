"""`pagedrun complete`: one prompt, one answer, for pipes. stdout holds the answer and nothing else."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pagedrun.cli import console, generate, inputs, pages, through
from pagedrun.cli.options import (
    EngineOptions,
    ModelOptions,
    SamplingOptions,
    ServerChoice,
    SessionOption,
    TemplateOptions,
    read_option_file,
    with_options,
)
from pagedrun.cli.output import AnswerOutput
from pagedrun.cli.schema import check_answer, is_json, read_schema
from pagedrun.cli.sessions.kept import kept
from pagedrun.errors import PagedrunError, UsageError
from pagedrun.request import Finished, FinishReason, GenerationRequest, check_can_end
from pagedrun.units import count, rate

if TYPE_CHECKING:
    from pagedrun.cli.repl.conversation import Conversation
    from pagedrun.cli.sessions.kept import Kept
    from pagedrun.hub import LocatedModel
    from pagedrun.sampling import SamplingParams
    from pagedrun.service import Answerer

CUT_OFF = 3
INTERRUPTED = 130

# llama.cpp takes 2**32 - 1 for "no seed given".
_SEEDS = 2**32 - 1


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """What the answer is to be, and how it is written."""

    file: Annotated[
        list[str] | None,
        typer.Option("-f", "--file", metavar="FILE", help="Text to add after PROMPT; may be repeated."),
    ] = None
    max_tokens: Annotated[
        int | None, typer.Option("-n", "--n", "--max-tokens", metavar="NUMBER", help="End after this many tokens.")
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="End before this text; may be repeated."),
    ] = None
    raw: Annotated[
        bool, typer.Option("--raw", help="No chat template: the model continues the text, byte for byte.")
    ] = False
    json_schema: Annotated[
        str | None,
        typer.Option("--json-schema", metavar="FILE|JSON", help="Answer with JSON by this schema, checked at the end."),
    ] = None
    grammar: Annotated[
        Path | None, typer.Option("--grammar", metavar="FILE", help="Answer with text that follows this GBNF grammar.")
    ] = None
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object: text, finish_reason, usage, timings, model, seed.")
    ] = False
    stream: Annotated[
        bool, typer.Option("--stream/--no-stream", help="Write the answer as it comes, or at once at its end.")
    ] = True

    @property
    def files(self) -> list[Path]:
        """Each --file."""
        return [Path(name) for name in self.file or ()]

    def check(self, template: TemplateOptions) -> None:
        """Raise UsageError for options that contradict each other or make no sense."""
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"-n must be 1 or more, not {self.max_tokens}")
        if "" in (self.file or ()):
            raise UsageError("--file needs the name of a file")
        if "-" in (self.file or ()):
            raise UsageError("--file - is no file", hint="standard input is read anyway; a file of that name is ./-")
        if any(not text for text in self.stop or ()):
            raise UsageError("--stop needs some text")
        if self.json_schema is not None and self.grammar is not None:
            raise UsageError("--json-schema and --grammar exclude each other")
        given = {"--system": template.system, "--think": template.think, "--chat-template": template.chat_template}
        for option, value in given.items():
            if self.raw and value is not None:
                raise UsageError(f"{option} belongs to the chat template, which --raw leaves out")


@with_options
def complete(
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help='What to ask; "-" for standard input.', show_default=False)
    ] = None,
    *,
    named: ModelOptions,
    answer: AnswerOptions,
    template: TemplateOptions,
    session: SessionOption = None,
    sampling: SamplingOptions,
    engine: EngineOptions,
    server: ServerChoice,
) -> None:
    """Answer one prompt. stdout holds the answer and nothing else.

    git diff | pagedrun complete "Write a commit message for this diff"

    The prompt is PROMPT, then each --file, then standard input where it is not a terminal, with a blank line in
    between. With "-" as PROMPT standard input comes first. With --raw they are joined as they are, byte for byte.
    In a script whose standard input is meant for something else, add < /dev/null.

    With --session the prompt goes on from what was said in the session, and the answer is kept there, if there is one.

    Exit codes: 0 done (also at -n tokens), 1 error, 2 wrong usage, 3 cut off by the context, or by -n in the middle
    of JSON that was asked for, 130 interrupted.
    """
    answer.check(template)
    schema = read_schema(answer.json_schema)
    grammar = None if answer.grammar is None else read_option_file(answer.grammar, "--grammar")
    params = sampling.params()
    check_can_end(params, constrained=schema is not None or grammar is not None)
    if params.seed is None:
        params = replace(params, seed=secrets.randbelow(_SEEDS))  # drawn here, so that --json can tell it
    with kept(session) as keeps:
        before = _Said.of(keeps, raw=answer.raw)
        name = named.model_option or (keeps.model if keeps else None) or through.default_model(server)
        located = generate.find_model(name, pull=named.pull)
        text = inputs.assemble(prompt, answer.files, raw=answer.raw)
        with through.open_answerer(located, engine, template, server, session=keeps is not None) as service:
            if keeps:
                keeps.attach(service, located.name)
            task = _Task(service, located, answer, template, params, schema, grammar, keeps, before)
            code = task.run(text)
            if keeps:
                keeps.finish()
    raise typer.Exit(code)


@dataclass(frozen=True)
class _Said:
    """What was said in the session before: a chat, or with --raw a text."""

    chat: Conversation | None = None
    text: str = ""

    @classmethod
    def of(cls, keeps: Kept | None, *, raw: bool) -> _Said:
        if keeps is None:
            return cls()
        return cls(text=keeps.text()) if raw else cls(keeps.conversation())


@dataclass(frozen=True)
class _Task:
    """One run, once everything that can be checked without the model has been."""

    service: Answerer
    located: LocatedModel
    options: AnswerOptions
    template: TemplateOptions
    params: SamplingParams
    schema: str | None
    grammar: str | None
    keeps: Kept | None
    before: _Said

    def run(self, text: str) -> int:
        """Generate and write the answer; returns the exit code."""
        request, rendered = self._request(text)
        answer = generate.ask(self.service, request, rendered)
        streams = self.options.stream and not self.options.json
        with AnswerOutput(f"reading {count(len(request.prompt), 'token')}") as output:
            try:
                for delta in answer:
                    if delta.content:
                        output.add(delta.content, now=streams)
                    else:
                        output.wait("thinking")
            except BaseException:  # Ctrl-C, a reader that left, a failure: the engine need not go on
                answer.cancel()
                raise
            finished = answer.finished
            assert finished is not None
            if not streams:
                self._check(answer, finished)
            if self.options.json:
                output.replace(json.dumps(self._report(answer, finished), ensure_ascii=False) + "\n")
            output.finish()
        if streams:
            self._check(answer, finished)
        self._keep(text, request, answer, finished)
        return self._outcome(answer, finished, len(request.prompt))

    def _request(self, text: str) -> tuple[GenerationRequest, Any]:
        rendered = None
        if self.options.raw:
            grammar = generate.raw_grammar(self.service, schema=self.schema, gbnf=self.grammar)
            request = generate.raw_request(self.service, self.before.text + text, self.params, grammar=grammar)
        else:
            from pagedrun.chat import ChatOptions, Message

            if self.before.chat is not None:
                messages = list(self._chat.messages(text))
            else:
                messages = [Message("user", text)]
                if self.template.system is not None:
                    messages.insert(0, Message("system", self.template.system))
            think = generate.think_mode(self.located, self.template)
            chat = ChatOptions(think=think, json_schema=self.schema, grammar=self.grammar)
            request, rendered = generate.chat_request(self.service, messages, chat, self.params)
        stop = tuple(self.options.stop or ())
        return generate.limited(request, max_tokens=self.options.max_tokens, stop=stop), rendered

    @property
    def _chat(self) -> Conversation:
        """What was said before, under the system prompt that counts."""
        assert self.before.chat is not None  # there is a session
        system = self.template.system
        return self.before.chat if system is None else self.before.chat.with_system(system)

    def _keep(self, text: str, request: GenerationRequest, answer: generate.Answer, finished: Finished) -> None:
        if self.keeps is None or finished.reason is FinishReason.CANCELLED or not (answer.content or answer.reasoning):
            return
        tokens = [*request.prompt, *answer.tokens]
        if self.options.raw:
            self.keeps.save_text(self.before.text + text + answer.content, tokens)
            return
        from pagedrun.cli.repl.conversation import Turn

        turn = Turn(question=text, answer=answer.content, reasoning=answer.reasoning, end=finished.reason)
        self.keeps.save(self._chat.add(turn), tokens)

    def _report(self, answer: generate.Answer, finished: Finished) -> dict[str, Any]:
        usage, timings = finished.usage, finished.timings
        return {
            "text": answer.content,
            "reasoning": answer.reasoning,
            "finish_reason": finished.reason.value,
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
                "cached_tokens": usage.cached_tokens,
            },
            "timings": {
                "queued_s": timings.queued_s,
                "prompt_s": timings.prompt_s,
                "decode_s": timings.decode_s,
                "gap_s": timings.gap_s,
                "max_gap_s": timings.max_gap_s,
                "prompt_tokens_per_s": rate(usage.prompt_tokens - usage.cached_tokens, timings.prompt_s),
                # The first token comes out of reading the prompt.
                "decode_tokens_per_s": rate(max(usage.completion_tokens - 1, 0), timings.decode_s),
            },
            "kv_cache": pages.report(self.service.kv),
            "kept": pages.kept_report(self.service.keeper),
            "model": self.located.name,
            "seed": self.params.seed,
        }

    def _check(self, answer: generate.Answer, finished: Finished) -> None:
        """Raise PagedrunError when a complete answer does not follow the schema."""
        if self.schema is None or finished.reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        if is_json(answer.content):
            check_answer(self.schema, answer.content)
        elif finished.reason is FinishReason.STOP:
            raise PagedrunError("the answer is not complete JSON", hint="--stop may have ended it early")

    def _outcome(self, answer: generate.Answer, finished: Finished, n_prompt: int) -> int:
        """Say on stderr what the answer lacks, if it lacks something; returns the exit code."""
        reason, tokens = finished.reason, count(finished.usage.completion_tokens, "token")
        if reason is FinishReason.CANCELLED:
            return INTERRUPTED
        if reason is FinishReason.CONTEXT:
            size = self.service.limits.max_seq_len
            held = f"{n_prompt:,} prompt, {finished.usage.completion_tokens:,} answer"
            console.show_problem(
                f"cut off: the context of {count(size, 'token')} is full ({held})",
                self.service.context_hint,
            )
            return CUT_OFF
        if self.schema is not None and not is_json(answer.content):
            console.show_problem(f"the JSON is incomplete: it was cut off after {tokens}", "raise -n")
            return CUT_OFF
        if answer.reasoning and not answer.content:
            console.warn(f"the answer ended after {tokens} while still thinking; raise -n, or use --no-think")
        return 0
