"""/v1/completions: text that goes on from a prompt as it is, without a chat template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from pagedrun.request import GenerationRequest, TokenLogprob
from pagedrun.server.answers import Answers, Choice, Piece, Task
from pagedrun.server.asking import copies, raw_grammar, recommended
from pagedrun.server.chat_fields import ResponseFormat
from pagedrun.server.chunks import ChunkPresenter
from pagedrun.server.errors import invalid, unsupported
from pagedrun.server.fields import TAG, Shared, prompt_tag
from pagedrun.server.replies import timings_of
from pagedrun.server.serving import Serving
from pagedrun.server.tokens import check_tokens, text_of, tokens_of

_DEFAULT_TOKENS = 16  # OpenAI's


Ids = Annotated[list[int], Field(min_length=1)]
Prompt = Annotated[
    Annotated[str, Tag(f"{TAG}text")]
    | Annotated[list[str], Field(min_length=1, max_length=128), Tag(f"{TAG}texts")]
    | Annotated[Ids, Tag(f"{TAG}ids")]
    | Annotated[list[Ids], Field(min_length=1, max_length=128), Tag(f"{TAG}ids-list")],
    Discriminator(prompt_tag),
]


class CompletionRequest(Shared):
    """A completion: of a text, several, or token ids."""

    prompt: Prompt
    suffix: str | None = None
    best_of: int | None = Field(None, ge=1, le=128)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None


def task_of(serving: Serving, asked: CompletionRequest) -> Task:
    """The requests of the engine: `n` for each prompt. Raises ApiError, RequestError."""
    if asked.suffix:
        raise unsupported("suffix", "is not supported: nothing can be filled in between")
    n = asked.n or 1
    if asked.best_of is not None and asked.best_of != n:
        raise invalid("'best_of' is only supported where it is 'n'", "best_of", "unsupported_parameter")
    if asked.echo and asked.logprobs is not None:
        raise invalid("'echo' is not supported with 'logprobs'", "echo", "unsupported_parameter")
    schema = asked.response_format.schema_text() if asked.response_format else None
    grammar = raw_grammar(
        serving, asked.grammar, schema, asked.response_format.given() if asked.response_format else ()
    )
    sampling = recommended(serving, asked.params(), serving.settings.think)
    requests: list[GenerationRequest] = []
    echoed: list[str] = []
    for prompt in _prompts(asked.prompt):
        request = GenerationRequest(
            prompt=_tokens(serving, prompt),
            sampling=sampling,
            max_tokens=asked.max_tokens or _DEFAULT_TOKENS,
            stop=asked.stops(),
            grammar=grammar,
            logprobs=asked.logprobs,
            priority=asked.priority or 0,
        )
        requests += copies(request, n)
        echoed += [_text(serving, prompt) if asked.echo else ""] * n
    return Task(requests=tuple(requests), prompts=tuple(echoed))


def _prompts(prompt: str | list[Any]) -> Sequence[str | list[int]]:
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]
    return prompt


def _tokens(serving: Serving, prompt: str | list[int]) -> tuple[int, ...]:
    if isinstance(prompt, str):
        if not (tokens := tokens_of(serving, prompt)):
            raise invalid("the prompt is empty: say at least a word", "prompt")
        return tokens
    check_tokens(serving, prompt, "prompt")
    return tuple(prompt)


def _text(serving: Serving, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else text_of(serving, prompt)


class CompletionPresenter(ChunkPresenter):
    """Objects and chunks of a completion."""

    prefix = "cmpl-"
    kind = chunk = "text_completion"

    def __init__(self, serving: Serving, *, wants_usage: bool = False, wants_logprobs: bool = False) -> None:
        super().__init__(serving, wants_usage=wants_usage, wants_logprobs=wants_logprobs)
        self._offsets: dict[int, int] = {}

    def started(self, answers: Answers) -> Iterator[bytes]:
        """The prompts, with `echo`."""
        for index, prompt in enumerate(answers.task.prompts):
            self._offsets[index] = len(prompt)
            if prompt:
                yield self._chunk(_part(index, prompt))

    def piece(self, answers: Answers, piece: Piece) -> Iterator[bytes]:
        """Text, and the end of one choice."""
        text = piece.delta.content
        logprobs = self._logprobs(piece.index, piece.logprobs)
        if text or logprobs:
            yield self._chunk(_part(piece.index, text, logprobs=logprobs))
        if piece.finished is not None:
            last = _part(piece.index, "", reason=_reason(answers.choices[piece.index]))
            yield self._chunk(last, timings=timings_of(piece.finished))

    def whole(self, answers: Answers) -> dict[str, Any]:
        """All choices at once."""
        choices = []
        for index, choice in enumerate(answers.choices):
            prompt = answers.task.prompts[index]
            self._offsets[index] = len(prompt)
            logprobs = self._logprobs(index, choice.logprobs)
            choices.append(_part(index, prompt + choice.content, logprobs=logprobs, reason=_reason(choice)))
        return self._object(choices, answers)

    def _logprobs(self, index: int, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """OpenAI's lists, one entry for each token; offsets in characters, from the beginning of the text."""
        if not self.wants_logprobs or not tokens:
            return None
        found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in tokens:
            text = text_of(self.serving, [token.token])
            found["tokens"].append(text)
            found["token_logprobs"].append(max(token.logprob, -9999.0))
            found["top_logprobs"].append({text_of(self.serving, [t]): max(p, -9999.0) for t, p in token.top})
            found["text_offset"].append(self._offsets[index])
            self._offsets[index] += len(text)
        return found


def _part(index: int, text: str, *, logprobs: Any = None, reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _reason(choice: Choice) -> str:
    return "length" if choice.cut_off else "stop"
