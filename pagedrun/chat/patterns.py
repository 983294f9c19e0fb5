"""Which regular expressions llama.cpp's grammars enforce in a JSON string.

Its converter takes any string for patterns that are not anchored at both ends or use what it does not know (`\\d`,
lookahead, ...). Others it turns into rules that end the string early or leave the escapes of JSON out: `.` and `[^a]`
match a quote, `\\n` a line end. What is here are those that it makes an exact rule of.
"""

from __future__ import annotations

import re

_QUANTIFIER = r"[*+?]|\{\d+(?:,\d*)?\}"
_TOKENS = re.compile(
    rf"(?P<quantifier>{_QUANTIFIER})"
    r"|(?P<open>\((?:\?:)?)|(?P<close>\))|(?P<bar>\|)"
    r"|(?P<escape>\\[$^.\[\]()|{}*+?])"
    r"|(?P<set>\[(?!\^)(?:\\[\[\]-]|[^\\\]\[\"])+\])"
    r"|(?P<literal>[^\\\"\x00-\x1f\x7f-\U0010ffff.()\[\]{}*+?^$|])"
)
_UNIT = re.compile(r"\\?(.)(?:-(?!\])\\?(.))?", re.DOTALL)
_UNSAFE = '"\\\x7f'


def is_enforced(pattern: str) -> bool:
    """Whether text by the grammar always matches the pattern."""
    if len(pattern) < 2 or pattern[0] != "^" or pattern[-1] != "$":
        return False
    at, depth = 1, 0
    before, run = "bar", 0  # kind of the last token; literals and escapes in a row
    while at < len(pattern) - 1 and depth >= 0:
        token = _TOKENS.match(pattern, at, len(pattern) - 1)
        if token is None or not _may_follow(token, before, run):
            return False
        before, at = str(token.lastgroup), token.end()
        depth += (before == "open") - (before == "close")
        run = run + 1 if before in ("literal", "escape") else 0
    return depth == 0 and (before != "bar" or pattern == "^$")


def _may_follow(token: re.Match[str], before: str, run: int) -> bool:
    kind = token.lastgroup
    if kind == "quantifier":
        low, _, high = token[0].strip("{}").partition(",")
        in_order = not high or int(low) <= int(high)
        # an escaped character is put together with those before it, and would be repeated with them
        return in_order and before not in ("bar", "open", "quantifier") and (before != "escape" or run == 1)
    if kind in ("bar", "close"):
        return before not in ("bar", "open")  # or one of the choices is nothing
    return kind != "set" or _is_safe(token[0][1:-1])


def _is_safe(inside: str) -> bool:
    """Whether a set has only characters that a JSON string has as they are."""
    for unit in _UNIT.finditer(inside):
        low, high = unit[1], unit[2] or unit[1]
        if low > high or low < " " or any(low <= c <= high for c in _UNSAFE):
            return False
    return True
