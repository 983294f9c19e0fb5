"""What a follow-up turn computes on a model that cannot go back: what is new, and little before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from pagedrun.config import EngineConfig
from pagedrun.engine import Submit
from pagedrun.kv import PageGeometry
from pagedrun.load import load_service
from pagedrun.request import Event, GenerationRequest, RequestId, TextDelta
from pagedrun.sampling import SamplingParams
from pagedrun.scheduling import Sequence
from pagedrun.service import Service
from pagedrun.step import RunnerLimits
from tests.fakes import TAG
from tests.paged_fakes import PagedEngine, end, expected

LONG = PageGeometry(page_bytes=24, row_bytes=4, n_stripes=2, n_pages=800, n_slots=2)
LIMITS = RunnerLimits(max_num_seqs=2, max_seq_len=4800, max_batch_tokens=256)
INTERVAL, APART = 64, 4
SYSTEM = "you are a helpful cook, who answers in few words. "


class Chats:
    """Requests to a fake engine by text; `told` is what prompt and answer were."""

    def __init__(self, *, host: int = 6000, interval: int = INTERVAL) -> None:
        self.paged = PagedEngine(
            device=5000,
            host=host,
            can_rewind=False,
            interval=interval,
            apart=APART,
            limits=LIMITS,
            geometry=LONG,
            max_tokens=4800,
        )
        self.prompt = self.told = ""

    def ask(self, prompt: str, n: int = 6) -> int:
        """How many tokens of a prompt were computed."""
        before = self.paged.runner.computed
        answer = self.paged.ask(prompt, n)
        self.prompt, self.told = prompt, prompt + answer
        return self.paged.runner.computed - before - (n - 1)

    @property
    def snapshots(self) -> list[int]:
        return sorted(s.position for s in self.paged.manager.snapshots)


def chat(turns: int, **settings: int) -> Chats:
    """A chat of so many turns of 26 tokens."""
    chats = Chats(**settings)
    for n in range(turns):
        chats.ask(chats.told + f"what about number {n:02}", 6)
    return chats


def test_appending_regenerating_and_undoing() -> None:
    chats = chat(60)
    told, prompt = chats.told, chats.prompt
    assert chats.ask(told + " and then?") <= len(" and then?") + 1 + APART
    assert chats.ask(prompt) <= 1 + APART
    assert chats.ask(told[:-26] + "rather number 7") <= len("rather number 7") + 1 + APART, "the last turn is undone"
    assert chats.ask(told + " so?") <= len(" so?") + 1 + APART, "back in the first one"


def test_editing_the_middle_costs_an_interval_at_most() -> None:
    chats = chat(60)
    told = chats.told
    for at in (40, 300, 700, 1111, 1500):
        assert chats.ask(told[:at] + "#" + told[at + 1 :]) <= len(told) - at + INTERVAL


def test_thinking_that_is_stripped_costs_the_last_answer() -> None:
    chats, history, before = Chats(), "", ""
    for n in range(40):
        prompt = f"{history}what about number {n:02}"
        computed = chats.ask(prompt, 18)
        answer = chats.told[len(prompt) + 12 :]  # twelve tokens of thinking are not in the history
        assert computed <= len(prompt) - len(before) + 1 + APART
        before, history = prompt, prompt + answer
    assert max(b - a for a, b in zip(chats.snapshots, chats.snapshots[1:], strict=False)) <= INTERVAL


def test_a_template_opens_the_answer() -> None:
    """In the next prompt the opening has no <think>, so that the state is taken before it."""
    chats = Chats()
    opening, events = (TAG, *b"bot", *b"<t>"), []
    first = (TAG, *b"user what about number 1", *opening)
    second = (*first[: -len(b"<t>")], *b"short", TAG, *b"user go on", *opening)
    for number, prompt in enumerate((first, second, second)):
        events.append([])
        request = GenerationRequest(prompt=prompt, max_tokens=5)
        chats.paged.engine._carry_out(Submit(Sequence(RequestId(number), request), events[-1].append))
        while not chats.paged.scheduler.idle:
            chats.paged.engine.step()
    cached = [end(e).usage.cached_tokens for e in events]
    assert cached == [0, len(first) - len(opening), len(second) - len(opening)]


def test_the_end_of_a_system_prompt_that_two_share_is_kept_for_the_third() -> None:
    chats = Chats(interval=1000)
    assert chats.ask(SYSTEM + "how long do eggs boil?") == len(SYSTEM + "how long do eggs boil?")
    chats.ask(SYSTEM + "what goes with rice?")
    assert len(SYSTEM) in chats.snapshots
    assert chats.ask(SYSTEM + "is it done?") == len("is it done?")
    assert chats.ask(SYSTEM + "why not?") == len("why not?")


def test_where_an_edit_was_made_another_one_finds_a_snapshot() -> None:
    chats = chat(30, interval=1000)
    told = chats.told
    chats.ask(told[:333] + "#" + told[334:])
    assert chats.ask(told[:333] + "+" + told[334:]) == len(told) - 333


@pytest.mark.parametrize("interval", [64, 1000])
def test_branches_share_the_pages_before_a_snapshot(interval: int) -> None:
    """And those that were computed again after it, once the branch rests."""
    chats = chat(20, interval=interval)
    told, before = chats.told, chats.paged.manager.stats()
    branch = told[:400] + "#" + told[401:500]
    assert chats.ask(branch) > 101
    after = chats.paged.manager.stats()
    assert after.pages == before.pages + LONG.pages_for(len(branch) + 5) - LONG.full_pages(400)
    assert after.shared_pages == before.shared_pages + LONG.full_pages(400)
    assert chats.ask(chats.told + "!") <= 2 + APART and chats.ask(told + "?") <= 2 + APART


def test_a_long_chat_with_little_memory_finds_the_last_turns() -> None:
    """A hundred turns, with room for twelve snapshots of eight bytes each."""
    chats = chat(100, host=2, interval=1000)
    assert len(chats.snapshots) == 96 // 8
    told, prompt = chats.told, chats.prompt
    assert chats.ask(prompt) <= 1 + APART
    assert chats.ask(told + " and?") <= len(" and?") + 1 + APART
    assert chats.ask(told[:1500] + "#" + told[1501:]) <= len(told) - 1500 + 750


@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_random_follow_ups_with_memory_compute_what_is_new(data: st.DataObject) -> None:
    chats, known = Chats(), [SYSTEM]
    for _ in range(data.draw(st.integers(1, 12))):
        told = data.draw(st.sampled_from(known))
        kind = data.draw(st.sampled_from(["append", "edit", "cut"]))
        at = len(told) if kind == "append" else data.draw(st.integers(1, len(told)))
        prompt = told[:at] + data.draw(st.sampled_from(["?", " and what then, if not?" * 3]))
        prompt += told[at + 1 :] if kind == "edit" else ""
        common = max(len_common(prompt, other) for other in known)
        spare = len(prompt) - min(common, len(prompt) - 1)
        computed = chats.ask(prompt, data.draw(st.integers(1, 90)))
        if len(known) > 1:
            assert computed <= spare + 1 + INTERVAL
        known.append(chats.told)
        assert chats.told == prompt + expected(prompt, len(chats.told) - len(prompt))


def len_common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.fixture(scope="module")
def hybrid(tiny_hybrid: Path) -> Iterator[Service]:
    config = EngineConfig(max_num_seqs=2, max_seq_len=8192, max_batch_tokens=512, threads=1, snapshot_interval=512)
    with load_service(tiny_hybrid, config) as service:
        yield service


def computed(service: Service, prompt: list[int], n: int = 24) -> tuple[int, list[int]]:
    """How many tokens of the prompt had to be computed, and the answer's tokens but for the last."""
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    request = GenerationRequest(prompt=tuple(prompt), sampling=sampling, max_tokens=n, logprobs=0)
    events: list[Event] = list(service.submit(request))
    tokens = [p.token for e in events if isinstance(e, TextDelta) for p in e.logprobs]
    return len(prompt) - end(events).usage.cached_tokens, tokens[:-1]


@pytest.mark.real
def test_a_hybrid_model_computes_what_is_new(hybrid: Service) -> None:
    def said(text: str) -> list[int]:
        return hybrid.vocab.tokenize(text, add_special=False, parse_special=True)

    words = "a word or two about pots, pans and what else is in the kitchen of a ship, "
    opening = said("<|im_start|>assistant\n<think>\n")
    history = said(f"<|im_start|>system\n{words * 40}<|im_end|>\n<|im_start|>user\n{words * 20}<|im_end|>\n")
    _, thinking = computed(hybrid, history + opening)
    answered = [*history, *opening[:-2], *said("It depends.<|im_end|>\n<|im_start|>user\nOn what?<|im_end|>\n")]
    new, answer = computed(hybrid, answered + opening)
    assert new <= len(answered) - len(history) + len(opening), "the last answer, without its thinking"
    follow = [*answered, *opening, *answer]
    assert computed(hybrid, follow + said("<|im_end|>\nGo on."))[0] <= 1 + 32 + len(said("<|im_end|>\nGo on."))
    assert computed(hybrid, answered + opening)[0] <= 32, "the same prompt again"
    edited = [*follow[:700], 5, *follow[701:]]
    assert computed(hybrid, edited)[0] <= len(follow) - 700 + 512
    assert computed(hybrid, [*follow[:700], 6, *follow[701:]])[0] <= len(follow) - 700 + 32, "another edit there"
    new, again = computed(hybrid, history + opening)
    assert new <= 32 and len(again) == len(thinking), "back to the first one"
