"""A service for the command line's tests: the real engine over the fake runner, which says what it is told to.

`Fake` makes `pagedrun.cli.generate` use it in this process; `python -m tests.cli_program` does so in another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pagedrun.chat.types import Message, ReplyDelta
from pagedrun.cli import main
from pagedrun.engine import Engine
from pagedrun.errors import PagedrunError
from pagedrun.memory import FreeMemory
from pagedrun.model import ModelInfo
from pagedrun.request import GenerationRequest, Grammar
from pagedrun.service import Service
from pagedrun.sessions import Identity
from pagedrun.sharing import Share
from pagedrun.step import RunnerLimits, StepPlan, StepResult
from tests.fakes import EOG, FakeRunner, FakeVocab
from tests.hub_fakes import without_other_programs

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class Rendered:
    prompt: str
    grammar: Grammar | None = None
    reasoning: None = None
    stop: tuple[str, ...] = ()
    preserved_tokens: tuple[str, ...] = ()


class Replies:
    """Everything up to CLOSE is thinking, if the reply begins with OPEN; holds back what may become a tag."""

    def __init__(self) -> None:
        self._text = ""
        self._given = Message("assistant")

    def feed(self, text: str) -> ReplyDelta:
        self._text += text
        now = self._split()
        delta = ReplyDelta(now.reasoning[len(self._given.reasoning) :], now.content[len(self._given.content) :])
        self._given = now
        return delta

    def finish(self) -> Message:
        return self._split(final=True)

    def _split(self, *, final: bool = False) -> Message:
        if not final and OPEN.startswith(self._text):
            return Message("assistant")
        if not self._text.startswith(OPEN):
            return Message("assistant", self._text)
        thought, closed, content = self._text.removeprefix(OPEN).partition(CLOSE)
        held = 0 if closed or final else max(n for n in range(len(CLOSE)) if thought.endswith(CLOSE[:n]))
        return Message("assistant", content, thought[: len(thought) - held])


class Templates:
    """Renders `role:content` lines and keeps what it was asked for."""

    source = "{{ messages }}"
    supports_thinking = True

    def __init__(self, error: PagedrunError | None = None) -> None:
        self.asked: list[tuple[tuple[Message, ...], Any]] = []
        self._error = error

    def render(self, messages: Sequence[Message], options: Any) -> Rendered:
        self.asked.append((tuple(messages), options))
        if self._error is not None:
            raise self._error
        text = options.grammar or (options.json_schema and f"schema {options.json_schema}")
        return Rendered(
            "".join(f"{m.role}:{m.content}\n" for m in messages), Grammar(text=text) if text else None, stop=("<stop>",)
        )

    def reply_parser(self, rendered: Rendered) -> Replies:
        return Replies()

    def schema_to_grammar(self, schema: str) -> str:
        return f"schema {schema}"


class Scripted(FakeRunner):
    """Says one text, a byte a step, whatever it is asked; notes the requests it got."""

    def __init__(self, says: str, size: int, step_s: float) -> None:
        super().__init__(RunnerLimits(max_num_seqs=1, max_seq_len=size, max_batch_tokens=64), self._next)
        self._says = says.encode()
        self._step_s = step_s
        self.got: list[GenerationRequest] = []

    def open(self, slot: Any, request: GenerationRequest) -> None:
        self.got.append(request)
        super().open(slot, request)

    def run(self, plan: StepPlan) -> StepResult:
        time.sleep(self._step_s)
        return super().run(plan)

    def _next(self, tokens: list[int], n_prompt: int) -> int:
        done = len(tokens) - n_prompt
        return self._says[done] if done < len(self._says) else EOG


class Boundless:
    """Stands in for `pagedrun.sharing.SharedMemory`: there is room for every model."""

    def __init__(self, config: Any, n_models: int) -> None:
        self._share = Share(config, FreeMemory(1 << 40))

    def share(self, beside: Any) -> Share:
        return self._share

    def fits(self, path: Path, beside: Any) -> bool:
        return True


@dataclass
class Fake:
    """What the fake says and how; after a run, what it was asked. digest: of its model; "": it has no identity."""

    says: str = "Hello!"
    size: int = 4096
    step_s: float = 0.0
    load_s: float = 0.0
    render_error: PagedrunError | None = None
    fail: Exception | None = None
    digest: str = ""
    loads: list[dict[str, Any]] = field(default_factory=list)
    runner: Scripted | None = None
    templates: Templates | None = None

    def load(self, path: Path, config: Any, **more: Any) -> Service:
        """Stands in for `pagedrun.load.load_service`."""
        config = config.config if isinstance(config, Share) else config
        self.loads.append({"path": path, "config": config, **more})
        time.sleep(self.load_s)
        self.runner = Scripted(self.says, self.size, self.step_s)
        self.runner.fail_run = self.fail
        self.templates = Templates(self.render_error)
        identity = None
        if self.digest:
            sizes = {"page_bytes": 1, "row_bytes": 1, "n_stripes": 1}
            identity = Identity(model=self.digest, kv_type_k="f16", kv_type_v="f16", **sizes)
        return Service(Engine(self.runner), model_info(path), self.templates, identity=identity)  # type: ignore[arg-type]

    @contextmanager
    def vocabulary(self, path: Path, **more: Any) -> Iterator[Any]:
        """Stands in for `pagedrun.native.vocabulary.load_vocabulary`."""
        self.templates = Templates(self.render_error)
        yield SimpleNamespace(vocab=FakeVocab(), templates=self.templates)

    def install(self, setattr_: Callable[[str, Any], None]) -> None:
        """Put the fake in place of the runtime and the loader."""
        setattr_("pagedrun.load.load_service", self.load)
        setattr_("pagedrun.native.vocabulary.load_vocabulary", self.vocabulary)
        setattr_("pagedrun.sessions.model_digest", lambda parts: self.digest)
        setattr_("pagedrun.sharing.SharedMemory", Boundless)
        setattr_("pagedrun.first_run.ensure_runtime", lambda: None)
        setattr_("pagedrun.runtime.store.cpu_notice", lambda runtime: None)

    @property
    def request(self) -> GenerationRequest:
        """The one request it got."""
        assert self.runner is not None
        (request,) = self.runner.got
        return request

    @property
    def prompt(self) -> bytes:
        """The prompt's text: one token is one byte."""
        return bytes(self.request.prompt)

    @property
    def chat_options(self) -> Any:
        """What the template was asked for."""
        assert self.templates is not None
        ((_, options),) = self.templates.asked
        return options


class Ran:
    """How a command ended, and what it wrote."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code, self.out, self.err = code, out.decode(), err.decode()


class Complete:
    """Runs `pagedrun complete -m MODEL ARGS` in this process, against a fake."""

    def __init__(self, model: Path, monkeypatch: pytest.MonkeyPatch, capture: Any) -> None:
        self._model, self._monkeypatch, self._capture = model, monkeypatch, capture

    def __call__(self, fake: Fake, *args: str, stdin: bytes | None = None) -> Ran:
        """`stdin` None is /dev/null."""
        fake.install(self._monkeypatch.setattr)
        source = Path("/dev/null")
        if stdin is not None:
            source = self._model.with_name("stdin")
            source.write_bytes(stdin)
        with source.open() as file:
            self._monkeypatch.setattr("sys.stdin", file)
            code = main.run(["complete", "-m", str(self._model), *args])
        return Ran(code, *self._capture.readouterr())


def model_info(path: Path) -> ModelInfo:
    return ModelInfo(
        path=path,
        name="Fake-1B",
        architecture="fake",
        quantization="Q4_0",
        n_params=10**9,
        n_vocab=258,
        n_ctx_train=4096,
        size_bytes=500 << 20,
        can_rewind=True,
        device="CPU",
    )


def folders(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty folders of our own for one test, with a model file in the current one; returns its path."""
    for name in ("cache", "config", "models", "state"):
        monkeypatch.setenv(f"PAGEDRUN_{name.upper()}", str(root / name))
    without_other_programs(root, monkeypatch)
    monkeypatch.setattr("pagedrun.cli.console.verbose", False)
    monkeypatch.delenv("PAGEDRUN_AUTO_SETUP", raising=False)
    monkeypatch.chdir(root)
    model = root / "model.gguf"
    model.write_bytes(b"GGUF")
    return model
