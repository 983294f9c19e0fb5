"""A service for the chat: the real engine over the fake runner, with a template and replies made up here.

The "model" answers by the last question's first word:

    echo X      X                       think X   <think>hmm</think> X
    count N     1 2 3 ... N, slowly     md        a markdown document
    chars N     N times "x"             escape    text that would drive a terminal
    wait        needs 1 s per step       fail      the engine reports an error
    bad TEXT    a template error
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pagedrun.engine import Engine
from pagedrun.errors import EngineError, TemplateError
from pagedrun.model import ModelInfo
from pagedrun.service import Service
from pagedrun.step import RunnerLimits, StepPlan, StepResult
from tests.fakes import EOG, FakeRunner

MARKDOWN = """# Title

A paragraph with **bold** text
on two lines.

- one
- two

```python
def f():
    return 1
```

| a | b |
|---|---|
| 1 | 2 |

The end.
"""
ESCAPE = "a\x1b[2Jb\x1b]0;owned\x07c &#27;[31m d\x9b31me"


@dataclass(frozen=True)
class Rendered:
    prompt: str
    grammar: None = None
    reasoning: None = None
    stop: tuple[str, ...] = ()
    preserved_tokens: tuple[str, ...] = ()


@dataclass(frozen=True)
class Delta:
    reasoning: str = ""
    content: str = ""


class ThinkParser:
    """Splits <think>...</think> from the rest, whole tags in one piece not required."""

    def __init__(self) -> None:
        self._text = ""
        self._shown = Delta()

    def feed(self, text: str) -> Delta:
        self._text += text
        now = self._split(final=False)
        delta = Delta(now.reasoning[len(self._shown.reasoning) :], now.content[len(self._shown.content) :])
        self._shown = now
        return delta

    def finish(self) -> Delta:
        return self._split(final=True)

    def _split(self, *, final: bool) -> Delta:
        text = self._text
        if "<think>".startswith(text) and not final:
            return Delta()
        if not text.startswith("<think>"):
            return Delta("", text)
        thought, closed, rest = text.removeprefix("<think>").partition("</think>")
        if not closed and not final:
            thought = re.sub(r"<(/(t(h(i(n(k)?)?)?)?)?)?$", "", thought)
        return Delta(thought, rest)


class FakeTemplates:
    """[role]content lines; keeps what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[Sequence[Any], Any]] = []

    def render(self, messages: Sequence[Any], options: Any) -> Rendered:
        self.calls.append((tuple(messages), options))
        if messages[-1].content.startswith("bad"):
            raise TemplateError("the template fails", hint="at line 3")
        lines = [f"[{m.role}]{'<' + m.reasoning + '>' if m.reasoning else ''}{m.content}\n" for m in messages]
        return Rendered("".join(lines) + "[assistant]")

    def reply_parser(self, rendered: Rendered) -> ThinkParser:
        return ThinkParser()


def reply(question: str) -> str:
    word, _, rest = question.partition(" ")
    if word == "echo":
        return rest
    if word == "think":
        return f"<think>hmm\nwell</think>{rest}"
    if word == "count":
        return " ".join(str(n + 1) for n in range(int(rest)))
    if word == "chars":
        return "x" * int(rest)
    return {"md": MARKDOWN, "escape": ESCAPE, "wait": "."}.get(word, f"you said {question}")


class ScriptedRunner(FakeRunner):
    """FakeRunner that answers with `reply`, a step at a time."""

    def __init__(self, *, size: int, step_s: float) -> None:
        super().__init__(RunnerLimits(max_num_seqs=1, max_seq_len=size, max_batch_tokens=64), self._next)
        self._step_s = step_s

    def run(self, plan: StepPlan) -> StepResult:
        question = self._question()
        if question.startswith("fail"):
            raise EngineError("decoding failed", hint="try again")
        if question.startswith("count"):
            time.sleep(self._step_s)
        if question.startswith("wait"):
            time.sleep(1)
        return super().run(plan)

    def _question(self) -> str:
        prompt = bytes(t for r in self.requests.values() for t in r.prompt).decode()
        return prompt.rpartition("[user]")[2].removesuffix("\n[assistant]")

    def _next(self, tokens: list[int], n_prompt: int) -> int:
        said = reply(self._question()).encode()
        done = len(tokens) - n_prompt
        return said[done] if done < len(said) else EOG


def model_info() -> ModelInfo:
    return ModelInfo(
        path=Path("fake.gguf"),
        name="Fake-1B",
        architecture="fake",
        quantization="Q4_0",
        n_params=10**9,
        n_vocab=258,
        n_ctx_train=4096,
        size_bytes=500 << 20,
        can_rewind=True,
        device="CPU",
        sampling={"top_k": 20},
    )


def fake_service(*, size: int = 4096, step_s: float = 0.0) -> Service:
    return Service(Engine(ScriptedRunner(size=size, step_s=step_s)), model_info(), FakeTemplates())


def located(*, origin: str = "named") -> Any:
    # Some file, for its size.
    return SimpleNamespace(path=Path(__file__), name="fake-1b", spec=None, origin=origin)
