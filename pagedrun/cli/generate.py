"""What `chat` and `complete` share: from a model's name to a loaded service, from messages to an answer.

find_model -> open_model -> chat_request | raw_request -> ask -> iterate over the Answer
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pagedrun import hub, units
from pagedrun.catalog import load_catalog
from pagedrun.cli import console
from pagedrun.errors import EngineError, ModelError, ModelNotFoundError
from pagedrun.paths import sessions_dir
from pagedrun.request import Finished, FinishReason, GenerationRequest, Grammar
from pagedrun.rope import scaling_text

if TYPE_CHECKING:
    from pagedrun.catalog import ModelSpec
    from pagedrun.chat import ChatOptions, Message, RenderedChat, ReplyParser
    from pagedrun.cli.options import EngineOptions, TemplateOptions
    from pagedrun.config import EngineConfig
    from pagedrun.embedding import EmbeddingService
    from pagedrun.sampling import SamplingParams
    from pagedrun.service import Answerer, Service, Stream
    from pagedrun.sharing import Share


def find_model(name: str | None, *, pull: bool = False, any_task: bool = False) -> hub.LocatedModel:
    """The file behind what the user typed; None is the model used last, else the embedded default.

    One that is not here is fetched where `pull` or somebody at the terminal says so; the embedded default also when
    the launcher (PAGEDRUN_AUTO_SETUP=1) asked for whatever is missing. Raises ModelNotFoundError, what fetching
    raises, and ModelError for a model that does not generate text, which `any_task` may.
    """
    from pagedrun.cli.models.missing import find_or_pull

    if name is not None and not any_task:
        require_generates(load_catalog().get(name))  # before it is fetched
    by_launcher = os.environ.get("PAGEDRUN_AUTO_SETUP") == "1" and hub.is_default(name)
    try:
        located = hub.locate(name) if by_launcher else find_or_pull(name, pull=pull)
    except ModelNotFoundError:
        if not by_launcher:
            raise
        with console.ByteProgress("fetching the default model") as progress:
            hub.fetch_default_model(progress)
        located = hub.locate(name)
    if not any_task:
        require_generates(located.spec)
    return located


def require_generates(spec: ModelSpec | None) -> None:
    """Raise ModelError for a known model that does not generate text."""
    if spec is not None and spec.task != "generate":
        hint = f'vectors of texts: pagedrun embed {spec.name} "TEXT"' if spec.task == "embed" else ""
        raise ModelError(f"{spec.name} is for {spec.task}: it does not generate text", hint=hint)


@contextmanager
def open_model(located: hub.LocatedModel, engine: EngineOptions, template: TemplateOptions) -> Iterator[Service]:
    """Load a model for the duration of a `with` block, with progress on stderr.

    Raises RuntimeLibraryError, ModelError, UsageError (settings) and TemplateError (--chat-template).
    """
    config = engine.settings()
    template_text = template.template_text()
    with loading(located) as on_progress:
        service = load_text(located, config, engine, template, template_text, on_progress)
    with service:
        tell_of_room(config, service)
        yield service


def load_text(
    located: hub.LocatedModel,
    config: EngineConfig | Share,
    engine: EngineOptions,
    template: TemplateOptions,
    template_text: str | None,
    on_progress: Callable[[int, int], None],
) -> Service:
    """A model that answers; the caller's to close. template_text: replaces the model's. Raises as `open_model`."""
    # Only now: it needs the runtime and takes most of the start.
    from pagedrun.hub.library import remember_use
    from pagedrun.load import load_service

    spec = located.spec
    service = load_service(
        located.path,
        config,
        sampling_defaults=spec.sampling_for(think=template.think) if spec else {},
        chat_template=template_text or (spec.chat_template if spec else None),
        on_progress=on_progress,
        verbose=console.verbose >= engine.log_from,
        sessions=sessions_dir(),
        name=located.name,
    )
    remember_use(located.path)
    return service


@contextmanager
def open_embedding(located: hub.LocatedModel, engine: EngineOptions) -> Iterator[EmbeddingService]:
    """The same for a model for embeddings."""
    with loading(located) as on_progress:
        service = load_vectors(located, engine.settings(), engine, on_progress)
    with service:
        yield service


def load_vectors(
    located: hub.LocatedModel,
    config: EngineConfig,
    engine: EngineOptions,
    on_progress: Callable[[int, int], None],
) -> EmbeddingService:
    """A model for embeddings; the caller's to close."""
    from pagedrun.load_embedding import load_embedding

    return load_embedding(located.path, config, on_progress=on_progress, verbose=console.verbose >= engine.log_from)


@contextmanager
def loading(located: hub.LocatedModel) -> Iterator[Callable[[int, int], None]]:
    """What goes with loading a model: the runtime is there, and progress on stderr as the function given is called.

    Raises RuntimeLibraryError, and explains a ModelFileError.
    """
    from pagedrun.first_run import ensure_runtime
    from pagedrun.hub.verify import explained
    from pagedrun.runtime import store

    runtime = ensure_runtime()
    if notice := store.cpu_notice(runtime):
        console.note(notice)
    with (
        explained(located.path),
        console.ByteProgress(f"loading {located.name}") as progress,
        _interrupts_kept() as check,
    ):

        def on_progress(done: int, total: int) -> None:
            check()
            progress(done, total)

        yield on_progress


def tell_of_room(config: EngineConfig, service: Answerer) -> None:
    """Say so where memory holds less than was asked for. It is no error: a window costs nothing, only tokens do. And
    where positions are scaled.
    """
    if scaled := scaling_text(config, service.model.n_ctx_train):
        console.note(f"note: {scaled}")
    fits = service.limits.max_seq_len
    if fits >= config.max_seq_len:
        return
    on_gpu = service.model.on_gpu
    more = "gpu_memory or swap_space" if on_gpu and config.spill != "off" else "gpu_memory"
    why, remedy = f"gpu_memory, {units.size(config.gpu_memory)},", f"raise {more}"
    if not config.gpu_memory:
        why, remedy = ("free VRAM", "free VRAM") if on_gpu else ("half of the free RAM", "set gpu_memory")
    asked = f"{fits:,} of the {units.count(config.max_seq_len, 'token')} asked for"
    console.note(f"note: a conversation can have {asked}: {why} has no room for more")
    console.note(f"hint:  {remedy}, or use --kv-type q8_0")


@contextmanager
def _interrupts_kept() -> Iterator[Callable[[], None]]:
    """Keep a Ctrl-C until the function given is called, or the block ends; then it is raised.

    Python would raise it at any moment, also inside a callback from C, where it is printed and lost.
    """
    pressed = False

    def keep(*_: object) -> None:
        nonlocal pressed
        pressed = True

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = signal.signal(signal.SIGINT, keep)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
    check()


def think_mode(located: hub.LocatedModel, template: TemplateOptions) -> bool | None:
    """Whether the model is to think: as the user says, else as the registry does; None leaves it to the template."""
    if template.think is None and located.spec is not None:
        return located.spec.think
    return template.think


def chat_request(
    service: Answerer, messages: Sequence[Message], options: ChatOptions, sampling: SamplingParams
) -> tuple[GenerationRequest, RenderedChat]:
    """Messages through the model's chat template, as a request, and what the template made of them.

    `max_tokens` and further stops are the caller's to add (`limited`). Raises TemplateError, GrammarError.
    """
    rendered = service.templates.render(messages, options)
    # add_special: where the vocabulary wants a BOS the template's own was taken out of the prompt.
    tokens = service.vocab.tokenize(rendered.prompt, add_special=True, parse_special=True)
    request = GenerationRequest(
        prompt=tuple(tokens),
        sampling=sampling,
        stop=tuple(rendered.stop),
        grammar=rendered.grammar,
        reasoning=rendered.reasoning,
        preserved_tokens=tuple(rendered.preserved_tokens),
    )
    return request, rendered


def raw_request(
    service: Answerer, text: str, sampling: SamplingParams, *, grammar: Grammar | None = None
) -> GenerationRequest:
    """`text` exactly as it is, as a request: no template; special tokens in it count, as in llama.cpp's tools."""
    tokens = service.vocab.tokenize(text, add_special=True, parse_special=True)
    return GenerationRequest(prompt=tuple(tokens), sampling=sampling, grammar=grammar)


def raw_grammar(service: Answerer, *, schema: str | None, gbnf: str | None) -> Grammar | None:
    """The grammar for an answer without a template: from a JSON schema, or GBNF. Raises GrammarError."""
    text = gbnf if schema is None else service.templates.schema_to_grammar(schema)
    return None if text is None else Grammar(text=text)


def limited(request: GenerationRequest, *, max_tokens: int | None, stop: Sequence[str] = ()) -> GenerationRequest:
    """The request with the user's limits added to the template's."""
    return replace(request, max_tokens=max_tokens, stop=(*request.stop, *stop))


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """Some more of an answer: of its thinking, or of what it says."""

    reasoning: str = ""
    content: str = ""


class Answer:
    """One answer as it comes: iterate for deltas; afterwards `finished`, `content` and `reasoning` are complete.

    Iterating raises the PagedrunError that ended the answer, if one did; what came until then is kept.
    """

    def __init__(self, stream: Stream, parser: ReplyParser | None) -> None:
        self._stream = stream
        self._parser = parser
        self.content = ""
        self.reasoning = ""
        self.tokens: list[int] = []
        self.finished: Finished | None = None

    def __iter__(self) -> Iterator[AnswerDelta]:
        for event in self._stream:
            if isinstance(event, Finished):
                self.finished = event
                continue
            self.tokens += event.tokens
            if delta := self._add(event.text):
                yield delta
        if delta := self._rest():
            yield delta
        if self.finished is None:
            raise EngineError("the engine stopped in the middle of the answer")
        if self.finished.reason is FinishReason.ERROR:
            raise self.finished.error or EngineError("the answer could not be generated")

    def cancel(self) -> None:
        """Stop generating. Go on iterating: `finished` arrives within one engine step."""
        self._stream.cancel()

    def _add(self, text: str) -> AnswerDelta | None:
        if self._parser is None:
            return self._took("", text)
        delta = self._parser.feed(text)
        return self._took(delta.reasoning, delta.content)

    def _rest(self) -> AnswerDelta | None:
        """What the parser held back because it might have been the beginning of a tag."""
        if self._parser is None:
            return None
        message = self._parser.finish()
        return self._took(message.reasoning[len(self.reasoning) :], message.content[len(self.content) :])

    def _took(self, reasoning: str, content: str) -> AnswerDelta | None:
        self.reasoning += reasoning
        self.content += content
        return AnswerDelta(reasoning, content) if reasoning or content else None


def ask(service: Answerer, request: GenerationRequest, rendered: RenderedChat | None = None) -> Answer:
    """Start generating. `rendered` is needed to tell thinking from the answer. Raises RequestError."""
    parser = service.templates.reply_parser(rendered) if rendered is not None else None
    return Answer(service.submit(request), parser)
