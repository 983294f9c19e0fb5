"""A named session to be saved, and what is tried where there is no room for all of it.

pages and text      what is computed, and what was said
fewer pages         those that the file has already
text alone          all is computed again
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagedrun.errors import PagedrunError
from pagedrun.sessions import NotSavedError
from pagedrun.units import count

log = logging.getLogger(__name__)

_TEXT_ALONE = 2

#: What was wrong with a save; None: nothing.
Told = Callable[["PagedrunError | None"], None]


@dataclass(slots=True)
class Wish:
    """tokens: of the prompt and its answer. less: how much is left out; why: what failed at first."""

    name: str
    tokens: Sequence[int]
    note: str
    told: Told
    less: int = 0
    why: str = ""

    @property
    def text_alone(self) -> bool:
        """Whether no page is to be saved."""
        return self.less == _TEXT_ALONE

    def smaller(self, error: PagedrunError | None) -> bool:
        """Whether to try again with less, after this error."""
        if not isinstance(error, NotSavedError) or self.text_alone:
            return False
        self.why = self.why or error.message.rpartition(" was not saved: ")[2]
        self.less += 1
        return True

    def ended(self, error: PagedrunError | None, n_tokens: int) -> None:
        """It was saved with so many tokens, or could not be."""
        if error is None and self.less:
            rest = count(len(self.tokens) - n_tokens, "token")
            said = "what was said is kept"
            log.warning("%s: %s; %s, and %s will be read again", self.name, self.why, said, rest)
        self.told(error)
