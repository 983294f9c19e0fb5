"""Texts by a GBNF grammar, made at random."""

from __future__ import annotations

import random
import re
from typing import Any

_TOKENS = re.compile(
    r'\s+|(?P<literal>"(?:\\.|[^"\\])*")|(?P<set>\[(?:\\.|[^\]\\])*\])|(?P<name>[A-Za-z0-9-]+)'
    r"|(?P<repeat>\{\d+(?:,\d*)?\}|[*+?])|(?P<sign>[()|])"
)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))")
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}


def _plain(text: str) -> list[str]:
    """The characters behind escapes; each `-` that is no escape becomes the empty text."""
    found, at = [], 0
    while at < len(text):
        if escape := _ESCAPE.match(text, at):
            digits = escape[1] or escape[2] or escape[3]
            found.append(chr(int(digits, 16)) if digits else _NAMED.get(escape[4], escape[4]))
            at = escape.end()
        else:
            found.append("" if text[at] == "-" else text[at])
            at += 1
    return found


class Texts:
    """Makes texts by a grammar; the deeper it is, the fewer repetitions and the shorter choices."""

    def __init__(self, grammar: str, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._rules = {}
        for line in grammar.splitlines():
            name, _, body = line.partition(" ::= ")
            tokens = [m for m in _TOKENS.finditer(body) if m.lastgroup]
            self._rules[name] = self._choices(tokens)
        self._heights = dict.fromkeys(self._rules, 10**6)  # how many rules within each other end it soonest
        for _ in range(len(self._rules)):
            for name, choices in self._rules.items():
                self._heights[name] = 1 + min(map(self._height, choices))

    def text(self) -> str:
        return self._of(("choice", self._rules["root"]), 0)

    def _choices(self, tokens: list[re.Match[str]]) -> list[list[Any]]:
        choices: list[list[Any]] = [[]]
        while tokens:
            token = tokens.pop(0)
            if token[0] == ")":
                break
            if token[0] == "|":
                choices.append([])
            elif token[0] == "(":
                choices[-1].append(("choice", self._choices(tokens)))
            elif token["repeat"]:
                least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(token[0], (None, None))
                if least is None:
                    low, comma, high = token[0][1:-1].partition(",")
                    least, most = int(low), int(high) if high else None if comma else int(low)
                choices[-1][-1] = ("repeat", choices[-1][-1], least, most)
            else:
                choices[-1].append((token.lastgroup, token[0]))
        return choices

    def _height(self, parts: list[Any]) -> int:
        return max((self._height_of(part) for part in parts), default=0)

    def _height_of(self, part: tuple[Any, ...]) -> int:
        if part[0] == "name":
            return self._heights[part[1]]
        if part[0] == "repeat":
            return self._height_of(part[1]) if part[2] else 0
        return min(map(self._height, part[1])) if part[0] == "choice" else 0

    def _of(self, what: tuple[Any, ...], depth: int) -> str:
        kind = what[0]
        if kind == "literal":
            return "".join(c or "-" for c in _plain(what[1][1:-1]))
        if kind == "set":
            return self._of_set(what[1][1:-1])
        if kind == "repeat":
            _, inner, least, most = what
            extra = 0 if depth > 12 else self._random.choice([0, 0, 1, 2, 5])
            n = least + extra if most is None else min(most, least + extra)
            return "".join(self._of(inner, depth + 1) for _ in range(n))
        choices = self._rules[what[1]] if kind == "name" else what[1]
        if depth > 12:
            choices = [min(choices, key=self._height)]
        return "".join(self._of(part, depth + 1) for part in self._random.choice(choices))

    def _of_set(self, inside: str) -> str:
        negated = inside.startswith("^")
        chars = _plain(inside[negated:])
        ranges, at = [], 0
        while at < len(chars):
            if at + 2 < len(chars) and chars[at + 1] == "":
                ranges.append((chars[at] or "-", chars[at + 2] or "-"))
                at += 3
            else:
                ranges.append((chars[at] or "-",) * 2)
                at += 1
        if negated:
            left = [c for c in 'abzA09 "\\\n-_.é' if not any(low <= c <= high for low, high in ranges)]
            return self._random.choice(left)
        low, high = self._random.choice(ranges)
        return self._random.choice([low, high, chr(self._random.randint(ord(low), ord(high)))])
