"""Texts and tokens of a loaded model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagedrun.server.errors import invalid

if TYPE_CHECKING:
    from pagedrun.server.serving import Loaded


def tokens_of(serving: Loaded, text: str) -> tuple[int, ...]:
    """A prompt's tokens, with the model's BOS where it wants one; <|tags|> are tokens."""
    return tuple(serving.service.vocab.tokenize(text, add_special=True, parse_special=True))


def text_of(serving: Loaded, tokens: Sequence[int]) -> str:
    """The text of tokens, special ones too."""
    vocab = serving.service.vocab
    return b"".join(vocab.piece(token, special=True) for token in tokens).decode("utf-8", "replace")


def check_tokens(serving: Loaded, tokens: Sequence[int], param: str) -> None:
    """Raise ApiError for ids that the model does not have."""
    n_vocab = serving.service.vocab.n_tokens
    if min(tokens, default=0) < 0 or max(tokens, default=0) >= n_vocab:
        raise invalid(f"'{param}' has token ids outside 0 to {n_vocab - 1}", param)
