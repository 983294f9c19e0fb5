"""How tokens lie in pages: pure arithmetic.

    stripe   | token 0 | token 1 | token 2 | token 3 | token 4 | ...      row_bytes each
             |     page 0     |     page 1     |     page 2     |        page_bytes each

A token has one row in each stripe, and a page is the same piece of all stripes. Rows and pages need not end together:
above, tokens 1 and 3 lie in two pages each.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class PageGeometry:
    """Sizes of the KV cache. page_bytes, row_bytes: in one stripe; n_pages: of the window that each slot has.

    stage_bytes: what a stage takes, through which a page of the host is read; 0: the store has none. zero_copy: whether
    a window can show frames of the host.
    """

    page_bytes: int
    row_bytes: int
    n_stripes: int
    n_pages: int
    n_slots: int
    stage_bytes: int = 0
    zero_copy: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name != "zero_copy" and getattr(self, field.name) < (field.name != "stage_bytes"):
                raise ValueError(f"{field.name} is {getattr(self, field.name)}")

    @property
    def frame_bytes(self) -> int:
        """What a page takes in memory."""
        return self.page_bytes * self.n_stripes

    @property
    def stages_pay(self) -> bool:
        """Whether a page that leaves the device gives back more memory than the stage that it is read through takes."""
        return 0 < self.stage_bytes < self.frame_bytes

    @property
    def tokens_per_page(self) -> float:
        """How many tokens a page holds; not always a whole number."""
        return self.page_bytes / self.row_bytes

    @property
    def max_tokens(self) -> int:
        """How many tokens a slot's window holds."""
        return self.n_pages * self.page_bytes // self.row_bytes

    def pages_for(self, n_tokens: int) -> int:
        """How many pages the first `n_tokens` tokens touch."""
        return -(-n_tokens * self.row_bytes // self.page_bytes)

    def full_pages(self, n_tokens: int) -> int:
        """How many pages the first `n_tokens` tokens fill: the next token is written to the page of this index."""
        return n_tokens * self.row_bytes // self.page_bytes
