"""`pagedrun embed`: a vector for each text, for pipes. stdout holds the vectors and nothing else."""

from __future__ import annotations

import base64
import enum
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

import typer

from pagedrun.cli import console, generate, inputs
from pagedrun.cli.options import MODEL_HELP, EngineOptions, PullOption, with_options
from pagedrun.errors import ModelError, OutputError, RequestError, UsageError
from pagedrun.units import count, size

if TYPE_CHECKING:
    from pagedrun.embedding import EmbeddingService, Vectors

_TOGETHER = 256  # lines whose vectors are written together; fewer where no more have come
_READ = 1 << 16  # bytes


class Format(str, enum.Enum):
    """What a line of the output is."""

    JSON = "json"
    ARRAY = "array"
    BASE64 = "base64"


@dataclass(frozen=True, kw_only=True)
class EmbeddingOptions(EngineOptions):
    """What there is to say of a model that keeps nothing."""

    leaves_out: ClassVar[frozenset[str]] = frozenset(
        {
            "rope_scaling", "kv_type", "max_num_seqs", "swap_space", "disk_space", "cache_disk", "spill",
            "prefetch_mode", "debug_kv",
        }
    )  # fmt: skip

    max_seq_len: Annotated[
        int | None,
        typer.Option(
            "-c",
            "--max-seq-len",
            metavar="NUMBER",
            help="The longest text, in tokens; 0: what the model and memory allow.",
            rich_help_panel="Engine",
            show_default=False,
        ),
    ] = None


class Line(NamedTuple):
    """A text, and what it is called in errors."""

    text: str
    where: str


@with_options
def embed(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP.partition(" Without it")[0])],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="What to embed; without it each line of standard input.")
    ] = None,
    *,
    dimensions: Annotated[
        int | None,
        typer.Option("--dimensions", metavar="NUMBER", help="Only the first so many numbers, made to length 1 again."),
    ] = None,
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="A line of output: an object with text, tokens and embedding; the numbers; or float32 in base64.",
        ),
    ] = Format.JSON,
    pull: PullOption = False,
    engine: EmbeddingOptions,
) -> None:
    """Make a vector of each text, one line of output for each: of length 1, as the model pools.

    Lines of standard input are answered as they come, so that another program can go on asking.

    Exit codes: 0 done, 1 error, 2 wrong usage, 130 interrupted.
    """
    if sys.stdout is None:
        raise OutputError("standard output is closed")
    if dimensions is not None and dimensions < 1:
        raise UsageError(f"--dimensions must be 1 or more, not {dimensions}")
    if not texts and not inputs.stdin_is_given():
        raise UsageError("there is no text", hint='pagedrun embed MODEL "TEXT", or send lines to standard input')
    engine.settings()  # what is wrong there is said before anything is loaded
    located = generate.find_model(model, pull=pull, any_task=True)
    with generate.open_embedding(located, engine) as service:
        if dimensions is not None and not service.normalizes:
            raise ModelError(f"{located.name} is a reranker: what it gives are scores, without --dimensions")
        if dimensions is not None and dimensions > service.n_dims:
            raise UsageError(f"--dimensions {dimensions}: the vectors of {located.name} have {service.n_dims}")
        for lines in _groups(texts):
            _answer(service, lines, dimensions, form)


def _answer(service: EmbeddingService, lines: Sequence[Line], dimensions: int | None, form: Format) -> None:
    from pagedrun.embedding import normalized

    tokens = [_tokens(service, line) for line in lines]
    vectors = service.embed(tokens)
    if dimensions is not None:
        vectors = normalized(vectors[:, :dimensions])
    rows = (_row(line.text, len(read), vector, form) for line, read, vector in zip(lines, tokens, vectors, strict=True))
    with console.writing_stdout():
        sys.stdout.buffer.write("".join(f"{row}\n" for row in rows).encode())
        sys.stdout.buffer.flush()


def _tokens(service: EmbeddingService, line: Line) -> list[int]:
    tokens, most = service.tokens(line.text), service.limits.max_seq_len
    if not tokens:
        raise RequestError(f"{line.where} has no tokens", hint="leave it out: there is nothing to make a vector of")
    if len(tokens) > most:
        raise RequestError(
            f"{line.where} has {count(len(tokens), 'token')}, and the model takes {most:,}", hint="shorten it"
        )
    return tokens


def _row(text: str, n_tokens: int, vector: Vectors, form: Format) -> str:
    if form is Format.BASE64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    if form is Format.ARRAY:
        return json.dumps(vector.tolist())
    found = {"text": text, "tokens": n_tokens, "embedding": vector.tolist()}
    return json.dumps(
        found, ensure_ascii=console.is_terminal(sys.stdout)
    )  # controls of a text are none of a terminal's


def _groups(texts: Sequence[str] | None) -> Iterator[list[Line]]:
    """What is embedded together. Raises RequestError for what is no text, after all before it."""
    if texts:
        yield [Line(_text(os.fsencode(text), f"text {i}"), f"text {i}") for i, text in enumerate(texts, 1)]
        return
    number = 0
    for data in _lines():
        group: list[Line] = []
        for one in data:
            number += 1
            try:
                group.append(Line(_text(one, f"line {number}"), f"line {number}"))
            except RequestError:
                if group:
                    yield group
                raise
        yield group


def _lines() -> Iterator[list[bytes]]:
    """Lines of standard input, as many as have come. Raises RequestError for one that does not end."""
    rest: list[bytes] = []
    n_bytes = 0
    while data := os.read(sys.stdin.fileno(), _READ):
        first, *more = data.split(b"\n")
        rest.append(first)
        n_bytes += len(first)
        if n_bytes > inputs.MAX_BYTES:
            raise RequestError(f"a line of standard input has more than {size(inputs.MAX_BYTES)}")
        if more:
            lines = [b"".join(rest), *more[:-1]]
            rest, n_bytes = [more[-1]], len(more[-1])
            for at in range(0, len(lines), _TOGETHER):
                yield [line.removesuffix(b"\r") for line in lines[at : at + _TOGETHER]]
    if last := b"".join(rest):
        yield [last.removesuffix(b"\r")]


def _text(data: bytes, where: str) -> str:
    if not data:
        raise RequestError(f"{where} is empty", hint="leave it out: there is nothing to make a vector of")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise RequestError(
            f"{where} is not UTF-8 text: byte {e.start + 1:,} is 0x{data[e.start]:02x}",
            hint="convert it first, for example with: iconv -t UTF-8",
        ) from e
