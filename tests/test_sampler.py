"""llama.cpp's sampler through the door, on SmolLM2: settings, grammars, budgets, and failures that stay failures.

Most tests look at one fixed set of logits ("The capital of France is"): many samplers draw from it, and what they
drew tells what the setting did.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pagedrun.chat import ChatOptions, ChatTemplates, Message
from pagedrun.errors import EngineError, GrammarError, ParameterError
from pagedrun.request import GenerationRequest, Grammar, GrammarKind, GrammarTrigger, Reasoning
from pagedrun.sampling import LLAMA_DEFAULTS, SamplingParams

if TYPE_CHECKING:
    from pagedrun.native.library import Library
    from pagedrun.native.sampler import Sampler

pytestmark = pytest.mark.real

PROMPT = "The capital of France is"
OPEN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}  # the model's own distribution
DRAWS = 120


class Lab:
    """A model and one context of 1,024 tokens, used by hand."""

    def __init__(self, library: Library, path: Path) -> None:
        from pagedrun.native.door import Door

        self.llama = library.llama
        self.door = Door(library.common)
        self.model = self.llama.llama_model_load_from_file(str(path).encode(), self.llama.llama_model_default_params())
        params = self.llama.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch = 1024, 1, 1
        self.context = self.llama.llama_init_from_model(self.model, params)
        self.vocab = self.llama.llama_model_get_vocab(self.model)
        self.n_vocab: int = self.llama.llama_vocab_n_tokens(self.vocab)

    def tokens(self, text: str) -> list[int]:
        data = text.encode()
        found = (self.llama.llama_token * 1024)()
        count = self.llama.llama_tokenize(self.vocab, data, len(data), found, 1024, True, True)
        return list(found[:count])

    def text(self, token: int) -> str:
        buffer = ctypes.create_string_buffer(128)
        size = self.llama.llama_token_to_piece(self.vocab, token, buffer, 128, 0, True)
        return buffer.raw[:size].decode("utf-8", "replace")

    def decode(self, tokens: list[int], *, fresh: bool = False) -> None:
        if fresh:
            self.llama.llama_memory_clear(self.llama.llama_get_memory(self.context), True)
        array = (self.llama.llama_token * len(tokens))(*tokens)  # the batch only points to it
        assert self.llama.llama_decode(self.context, self.llama.llama_batch_get_one(array, len(array))) == 0

    def logits(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.ctypeslib.as_array(self.llama.llama_get_logits_ith(self.context, -1), (self.n_vocab,)).copy()

    def sampler(self, prompt: list[int], settings: dict[str, Any], **request: Any) -> Sampler:
        from pagedrun.native.sampler import Sampler

        sampling = SamplingParams(**settings).with_defaults(LLAMA_DEFAULTS)
        asked = GenerationRequest(prompt=tuple(prompt), sampling=sampling, **request)
        made = Sampler(self.door, self.model, asked, sampling)
        made.accept_prompt(prompt)
        return made

    def draw(self, prompt: str = PROMPT, n: int = DRAWS, **settings: Any) -> Counter[int]:
        """How often each token was the first one, over the seeds 0..n-1."""
        tokens = self.tokens(prompt)
        self.decode(tokens, fresh=True)
        drawn: Counter[int] = Counter()
        for seed in range(n):
            sampler = self.sampler(tokens, OPEN | settings | {"seed": seed})
            drawn[sampler.sample(self.context, -1)] += 1
            sampler.close()
        return drawn

    def generate(
        self, prompt: str = PROMPT, n: int = 16, settings: dict[str, Any] | None = None, **request: Any
    ) -> str:
        tokens = self.tokens(prompt)
        sampler = self.sampler(tokens, settings or {"seed": 1}, **request)
        self.decode(tokens, fresh=True)
        said = ""
        for _ in range(n):
            token = sampler.sample(self.context, -1)
            if self.llama.llama_vocab_is_eog(self.vocab, token):
                return said + "<END>"
            said += self.text(token)
            self.decode([token])
        return said


@pytest.fixture(scope="module")
def lab(library: Library, smollm2: Path) -> Iterator[Lab]:
    made = Lab(library, smollm2)
    yield made
    made.llama.llama_free(made.context)
    made.llama.llama_model_free(made.model)


@pytest.fixture(autouse=True)
def silence(lab: Lab, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Nothing of this may print, nor leave a thread behind."""
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    yield
    assert capfd.readouterr() == ("", "")
    assert len(os.listdir("/proc/self/task")) <= threads + 1  # noqa: PTH208 -- ggml's one worker comes with the first decode


def ranked(lab: Lab) -> list[int]:
    lab.decode(lab.tokens(PROMPT), fresh=True)
    return [int(t) for t in np.argsort(-lab.logits())]


def probabilities(lab: Lab) -> Any:
    lab.decode(lab.tokens(PROMPT), fresh=True)
    logits = lab.logits().astype(np.float64)
    return np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()


def test_temperature_zero_is_the_argmax_of_the_logits(lab: Lab) -> None:
    tokens = lab.tokens(PROMPT)
    sampler = lab.sampler(tokens, {"temperature": 0.0})
    lab.decode(tokens, fresh=True)
    for _ in range(16):
        expected = int(lab.logits().argmax())
        assert sampler.sample(lab.context, -1) == expected
        lab.decode([expected])


def test_same_seed_same_answer_and_the_seed_is_told(lab: Lab) -> None:
    answers = [lab.generate(settings={"seed": seed, "temperature": 1.2}) for seed in (1, 1, 2, 3)]
    assert answers[0] == answers[1]
    assert len(set(answers)) > 1
    assert lab.sampler([1], {"seed": 5}).seed == 5


def test_without_a_seed_each_sampler_draws_one(lab: Lab) -> None:
    seeds = {lab.sampler([1], {}).seed for _ in range(4)}
    assert len(seeds) == 4
    seed = seeds.pop()
    assert lab.sampler([1], {"seed": seed}).seed == seed


def test_temperature_spreads(lab: Lab) -> None:
    assert len(lab.draw(temperature=0.3)) < len(lab.draw(temperature=1.0)) < len(lab.draw(temperature=3.0))


def test_top_k(lab: Lab) -> None:
    best = ranked(lab)
    assert set(lab.draw(top_k=1)) == set(best[:1])
    assert set(lab.draw(top_k=3, temperature=3.0)) == set(best[:3])


def test_top_p_and_min_p_and_typical_p(lab: Lab) -> None:
    order, p = ranked(lab), probabilities(lab)
    nucleus = order[: int(np.searchsorted(np.cumsum(p[order]), 0.5)) + 1]
    assert len(nucleus) < 40
    assert set(lab.draw(top_p=0.5)) <= set(nucleus)
    assert not set(lab.draw(top_p=1.0)) <= set(nucleus)
    likely = {int(t) for t in np.flatnonzero(p >= 0.1 * p.max())}
    assert set(lab.draw(min_p=0.1)) <= likely
    assert not set(lab.draw(min_p=0.0)) <= likely
    entropy = -(p[p > 0] * np.log(p[p > 0])).sum()
    typical = [int(t) for t in np.argsort(np.abs(-np.log(np.maximum(p, 1e-300)) - entropy))]
    kept = typical[: int(np.searchsorted(np.cumsum(p[typical]), 0.2)) + 1]
    assert set(lab.draw(typical_p=0.2)) <= set(kept)


def test_xtc_leaves_out_the_best(lab: Lab) -> None:
    best = ranked(lab)[0]
    assert lab.draw()[best] > 0
    assert lab.draw(xtc_probability=1.0, xtc_threshold=0.02)[best] == 0
    assert lab.draw(xtc_probability=1.0, xtc_threshold=0.6)[best] > 0, "a threshold above 0.5 switches it off"
    assert lab.draw(xtc_probability=0.0, xtc_threshold=0.02)[best] > 0


FOX = "The quick brown fox jumps over the lazy dog."
REPEATED = f"{FOX} {FOX} The quick brown fox jumps over the"


@pytest.mark.parametrize(
    "setting",
    [{"repeat_penalty": 5.0}, {"presence_penalty": 50.0}, {"frequency_penalty": 50.0}],
    ids=lambda s: next(iter(s)),
)
def test_penalties_look_back_at_the_prompt(lab: Lab, setting: dict[str, Any]) -> None:
    (lazy,) = lab.draw(REPEATED, 1, temperature=0.0)
    assert lab.text(lazy) == " lazy"
    assert lab.draw(REPEATED, 1, temperature=0.0, **setting)[lazy] == 0
    assert lab.draw(REPEATED, 1, temperature=0.0, repeat_last_n=0, **setting)[lazy] == 1
    assert lab.draw(REPEATED, 1, temperature=0.0, repeat_last_n=2, **setting)[lazy] == 1, "it was ten tokens ago"


def test_dry_breaks_a_repetition(lab: Lab) -> None:
    (lazy,) = lab.draw(REPEATED, 1, temperature=0.0)
    dry = {"temperature": 0.0, "dry_multiplier": 50.0}
    assert lab.draw(REPEATED, 1, **dry)[lazy] == 0
    assert lab.draw(REPEATED, 1, **dry, dry_allowed_length=40)[lazy] == 1
    assert lab.draw(REPEATED, 1, **dry, dry_penalty_last_n=0)[lazy] == 1
    assert lab.draw(REPEATED, 1, **dry, dry_base=0.5)[lazy] == 1, "a base below 1 switches it off"
    assert lab.draw(REPEATED, 1, **dry, dry_sequence_breakers=(" over",))[lazy] == 1


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_aims_at_a_surprise(lab: Lab, version: int) -> None:
    low = lab.draw(mirostat=version, mirostat_tau=0.1)
    high = lab.draw(mirostat=version, mirostat_tau=9.0)
    assert len(low) < len(high)

    def answer(eta: float) -> str:
        return lab.generate(settings={"mirostat": version, "mirostat_eta": eta, "mirostat_tau": 3.0, "seed": 4}, n=12)

    assert answer(0.0) != answer(0.9)


def test_logit_bias(lab: Lab) -> None:
    best = ranked(lab)
    assert set(lab.draw(logit_bias=((best[50], 100.0),))) == {best[50]}
    banned = tuple((t, -float("inf")) for t in best[:5])
    assert not set(lab.draw(logit_bias=banned)) & set(best[:5])
    with pytest.raises(ParameterError, match="not in the vocabulary"):
        lab.sampler([1], {"logit_bias": ((lab.n_vocab, 1.0),)})


def test_ignore_eos(lab: Lab) -> None:
    eog = {t for t in range(lab.n_vocab) if lab.llama.llama_vocab_is_eog(lab.vocab, t)}
    tokens = lab.tokens("<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n")
    lab.decode(tokens, fresh=True)
    while (best := int(lab.logits().argmax())) not in eog:  # up to where the model wants to end
        assert len(tokens) < 200
        tokens.append(best)
        lab.decode([best])
    greedy = {"temperature": 0.0}
    assert lab.sampler(tokens, greedy).sample(lab.context, -1) == best
    assert lab.sampler(tokens, greedy | {"ignore_eos": True}).sample(lab.context, -1) not in eog


def test_a_grammar_is_obeyed(lab: Lab) -> None:
    for seed in range(8):
        said = lab.generate(
            settings={"seed": seed, "temperature": 2.0}, grammar=Grammar(text='root ::= [a-c]{2,4} "!"')
        )
        assert said.endswith("!<END>")
        assert 2 <= len(said.removesuffix("!<END>")) <= 4
        assert set(said.removesuffix("!<END>")) <= set("abc")


def test_a_json_schema_is_obeyed(lab: Lab) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 10, "maximum": 19}, "c": {"enum": ["red", "blue"]}},
        "required": ["n", "c"],
        "additionalProperties": False,
    }
    grammar = Grammar(text=lab.door.schema_to_grammar(json.dumps(schema)), kind=GrammarKind.OUTPUT_FORMAT)
    for seed in range(3):
        said = lab.generate(n=60, settings={"seed": seed, "temperature": 1.5}, grammar=grammar)
        value = json.loads(said.removesuffix("<END>"))
        assert set(value) == {"n", "c"}
        assert 10 <= value["n"] <= 19
        assert value["c"] in ("red", "blue")


def test_a_schema_through_the_models_template(lab: Lab) -> None:
    """The template's grammar begins with what the template wrote: that part has to be taken as read."""
    templates = ChatTemplates(lab.door, lab.model)
    chat = templates.render(
        [Message("user", "How old are you?")],
        ChatOptions(json_schema='{"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}'),
    )
    said = lab.generate(chat.prompt, n=40, grammar=chat.grammar, reasoning=chat.reasoning)
    parser = templates.reply_parser(chat)
    parser.feed(said.removesuffix("<END>"))
    assert isinstance(json.loads(parser.finish().content)["age"], int)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "empty"),
        ("root ::= (", "at line 1: the end"),
        ('root ::= "a"\nb ::= %', "at line 2: %"),
        ("root ::= nowhere", "no rule named 'nowhere'"),
        ('a ::= "a"', "no rule named 'root'"),
        ('root ::= root "a" | "b"', "left-recursive"),
        ("root ::= " + "(" * 100_000, "nested parentheses"),
        ("root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(50_000)) + 'r50000 ::= "a"', "rules"),
        ('root ::= "a"{100000000}', "sane defaults"),
        ("%llguidance {}", "line 1"),
    ],
    ids=lambda text: text[:20],
)
def test_a_bad_grammar_is_refused(lab: Lab, text: str, told: str) -> None:
    with pytest.raises(GrammarError) as refused:
        lab.sampler([1], {}, grammar=Grammar(text=text))
    assert told in refused.value.message
    assert len(refused.value.message) < 200


def test_parentheses_that_are_text_do_not_count(lab: Lab) -> None:
    nested = '"' + "(" * 1000 + '"'
    lab.sampler([1], {}, grammar=Grammar(text=f"# {'(' * 1000}\nroot ::= {nested} | [(({'(' * 400}]"))


def test_a_grammar_that_cannot_start_where_the_template_ends(lab: Lab) -> None:
    grammar = Grammar(text='root ::= "x"', kind=GrammarKind.OUTPUT_FORMAT, generation_prompt="<|im_start|>assistant\n")
    with pytest.raises(GrammarError, match="already wrote"):
        lab.sampler([1], {}, grammar=grammar)


def test_a_lazy_grammar_needs_triggers(lab: Lab) -> None:
    with pytest.raises(ParameterError, match="triggers"):
        lab.sampler([1], {}, grammar=Grammar(text='root ::= "x"', lazy=True))


def test_a_trigger_pattern_that_is_no_pattern(lab: Lab) -> None:
    with pytest.raises(GrammarError):
        lab.sampler([1], {}, grammar=Grammar(text='root ::= "x"', lazy=True, triggers=(GrammarTrigger(2, "("),)))


@pytest.mark.parametrize("kind", ["token", "word", "pattern"])
def test_a_lazy_grammar_wakes_at_its_trigger(lab: Lab, kind: str) -> None:
    (first,) = lab.draw(n=1, temperature=0.0)
    word = lab.text(first)
    trigger = {
        "token": GrammarTrigger(0, "", first),
        "word": GrammarTrigger(1, word),
        "pattern": GrammarTrigger(2, f"({word})"),
    }[kind]
    grammar = Grammar(text=f'root ::= "{word}" ", oh yes!"', lazy=True, triggers=(trigger,))
    assert lab.generate(settings={"temperature": 0.0}, grammar=grammar) == f"{word}, oh yes!<END>"
    asleep = Grammar(text='root ::= "no"', lazy=True, triggers=(GrammarTrigger(1, "<never>"),))
    assert lab.generate(settings={"temperature": 0.0}, grammar=asleep).startswith(word)


def test_a_dead_end_fails_this_sampler_only_and_for_good(lab: Lab) -> None:
    tokens = lab.tokens(PROMPT)
    lab.decode(tokens, fresh=True)
    other = lab.sampler(tokens, {"temperature": 0.0})
    stuck = lab.sampler(tokens, {"ignore_eos": True}, grammar=Grammar(text='root ::= "a"'))
    assert lab.text(stuck.sample(lab.context, -1)) == "a"
    for _ in range(2):  # the grammar is at its end and the end of the answer is banned
        with pytest.raises(GrammarError, match="no token is left"):
            stuck.sample(lab.context, -1)
    with pytest.raises(EngineError):
        stuck.accept_prompt([1])
    assert other.sample(lab.context, -1) == int(lab.logits().argmax())


def test_an_output_without_logits(lab: Lab) -> None:
    lab.decode(lab.tokens(PROMPT), fresh=True)
    with pytest.raises(EngineError, match="no logits at output 3"):
        lab.sampler([1], {}).sample(lab.context, 3)


def test_a_closed_sampler(lab: Lab) -> None:
    sampler = lab.sampler([1], {})
    sampler.close()
    sampler.close()
    with pytest.raises(EngineError, match="closed"):
        sampler.sample(lab.context, -1)


def test_a_reasoning_budget_ends_the_thinking(lab: Lab) -> None:
    def thinking(budget: int | None, opened: str = "<think>") -> Reasoning:
        return Reasoning(start_tag="<think>", end_tags=("</think>",), budget_tokens=budget, generation_prompt=opened)

    prompt, greedy = "Hm, let me think.<think>", {"temperature": 0.0}
    free = lab.generate(prompt, settings=greedy, reasoning=thinking(None))
    assert "</think>" not in free
    cut = lab.generate(prompt, settings=greedy, reasoning=thinking(5))
    before, tag, _ = cut.partition("</think>")
    assert tag
    assert free.startswith(before)
    assert 0 < len(lab.tokens(before)) <= 6
    assert lab.generate(prompt, settings=greedy, reasoning=thinking(0)).startswith("</think>")
    assert lab.generate(prompt, settings=greedy, reasoning=thinking(0, opened="")) == free, "no thinking was opened"


def test_a_grammar_of_the_user_begins_after_the_thinking(lab: Lab) -> None:
    source = "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}A:<think>\n{% endif %}"
    history = (
        "{% for m in messages %}{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>{% endif %}"
    )
    templates = ChatTemplates(lab.door, lab.model, source.replace("{% for m in messages %}", history))
    options = ChatOptions(grammar='root ::= "yes" | "no"', think=True, reasoning_budget=4)
    chat = templates.render([Message("user", "Is it late?")], options)
    assert chat.grammar is not None
    assert chat.grammar.lazy
    said = lab.generate(chat.prompt, settings={"temperature": 0.0}, grammar=chat.grammar, reasoning=chat.reasoning)
    parser = templates.reply_parser(chat)
    parser.feed(said.removesuffix("<END>"))
    message = parser.finish()
    assert message.content in ("yes", "no")
    assert message.reasoning


def test_fit_reports_and_leaves_the_log_alone(lab: Lab, library: Library, smollm2: Path) -> None:
    mparams, cparams = lab.llama.llama_model_default_params(), lab.llama.llama_context_default_params()
    cparams.n_ctx = 512
    fit = lab.door.fit(str(smollm2), mparams, cparams, margin=0, n_ctx_min=512)
    assert fit.report["status"] == 0
    assert fit.report["n_ctx"] == 512
    fit.close()
    library.log.clear()
    lost = lab.door.fit(str(smollm2) + ".nowhere", mparams, cparams, margin=0, n_ctx_min=512)
    assert lost.report["status"] == 2
    assert "nowhere" in library.log.text()
    library.log.clear()
    lab.llama.llama_model_load_from_file(b"elsewhere.gguf", mparams)
    assert "elsewhere" in library.log.text()
