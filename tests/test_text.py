"""Detokenising and stop strings: nothing half, nothing leaked, nothing lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagedrun.request import TokenLogprob
from pagedrun.text import StopMatcher, TextAssembler


def run(pieces: list[bytes], stops: list[str] = []) -> tuple[list[str], str | None]:  # noqa: B006
    assembler = TextAssembler(stops)
    out = []
    for token, piece in enumerate(pieces):
        if delta := assembler.push(token, piece):
            out.append(delta.text)
        if assembler.stopped is not None:
            break
    if rest := assembler.finish():
        out.append(rest.text)
    return out, assembler.stopped


def test_a_character_split_over_tokens_comes_whole() -> None:
    assert run([b"a", b"\xf0\x9f", b"\x98", b"\x80", b"b"]) == (["a", "😀", "b"], None)


def test_an_incomplete_character_at_the_end_is_dropped() -> None:
    assert run([b"ok", b"\xf0\x9f"]) == (["ok"], None)


def test_invalid_bytes_become_replacement_characters() -> None:
    assert "".join(run([b"a\xff", b"b"])[0]) == "a�b"


def test_a_stop_string_across_tokens_never_shows() -> None:
    assert run([b"hello ", b"ST", b"O", b"P more"], ["STOP"]) == (["hello "], "STOP")


def test_the_beginning_of_a_stop_string_is_shown_once_it_cannot_be_one() -> None:
    assert "".join(run([b"x", b"ST", b"A"], ["STOP"])[0]) == "xSTA"
    assert "".join(run([b"x", b"ST"], ["STOP"])[0]) == "xST"


def test_the_earliest_stop_string_wins_and_of_two_at_one_place_the_longer() -> None:
    assert run([b"one two"], ["two", "one"]) == ([], "one")
    assert run([b"ab END!"], ["END", "END!"]) == (["ab "], "END!")


def test_overlapping_beginnings_are_kept() -> None:
    assert run([b"a", b"a", b"a", b"b"], ["aab"]) == (["a"], "aab")


def test_tokens_and_logprobs_travel_with_the_text_they_made() -> None:
    assembler = TextAssembler([])
    logprobs = [TokenLogprob(i, -float(i)) for i in range(3)]
    assert assembler.push(0, b"\xc3", logprobs[0]) is None
    delta = assembler.push(1, b"\xa9", logprobs[1])
    assert delta is not None
    assert (delta.text, delta.tokens, delta.logprobs) == ("é", (0, 1), tuple(logprobs[:2]))


@given(
    st.text(alphabet="abXY😀é", max_size=40),
    st.lists(st.text(alphabet="abX😀", min_size=1, max_size=4), max_size=3),
    st.data(),
)
def test_any_cut_gives_the_same_text(text: str, stops: list[str], data: st.DataObject) -> None:
    raw = text.encode()
    pieces, at = [], 0
    while at < len(raw):
        size = data.draw(st.integers(1, 5))
        pieces.append(raw[at : at + size])
        at += size
    shown, stopped = run(pieces, stops)
    # A piece may complete one stop string and contain the beginning of an earlier, longer one that the whole text
    # would have preferred; so the reference looks at the text up to the first complete match, piece by piece.
    whole = "".join(shown)
    assert text.startswith(whole)
    assert not any(s in whole for s in stops)
    assert (stopped is None) == (not any(s in text for s in stops))
    if stopped is None:
        assert whole == text
    else:
        assert text[len(whole) :].startswith(stopped)


@given(st.lists(st.text(alphabet="ab", max_size=3)), st.text(alphabet="ab", max_size=20))
def test_held_text_is_always_the_beginning_of_a_stop_string(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    for character in text:
        _, stop = matcher.feed(character)
        if stop:
            break
        assert not matcher.held or any(s.startswith(matcher.held) and s != matcher.held for s in stops)
