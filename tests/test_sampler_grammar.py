"""Grammars, schemas, thinking budgets and failures of llama.cpp's sampler through the door, on SmolLM2."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pagedrun.chat import ChatOptions, ChatTemplates, Message
from pagedrun.errors import EngineError, GrammarError, ParameterError
from pagedrun.request import Grammar, GrammarKind, GrammarTrigger, Reasoning
from tests.sampler_lab import PROMPT, Lab

if TYPE_CHECKING:
    from pagedrun.native.library import Library

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("silence")]


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
        ('root ::= "a', "the grammar cannot be read: unexpected end of input"),
        ('root ::= "x"{5,2}', "a repetition with its minimum above its maximum: {5,2}"),
        ('root ::= (<{> # {\r [\\]{] "\\"{" # "\n{ 005, # }\n 2 })', "minimum above its maximum: {005,2}"),
        (f"root ::= [a]{{{'9' * 30},2}}", "minimum above its maximum"),
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
    assert "\n" not in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize("text", ['"{5,2}"', "[{5,2}]", '"a" # {5,2}', '"a"{2,10}', '"a"{2,}', '"a"{0,0}', '"a"{02,2}'])
def test_repetitions_that_are_text_or_in_order_are_taken(lab: Lab, text: str) -> None:
    lab.sampler([1], {}, grammar=Grammar(text=f"root ::= {text}\n"))


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
    ends = tuple((t, -math.inf) for t in range(lab.n_vocab) if lab.llama.llama_vocab_is_eog(lab.vocab, t))
    stuck = lab.sampler(tokens, {"logit_bias": ends}, grammar=Grammar(text='root ::= "a"'))
    assert lab.text(stuck.sample(lab.context, -1)) == "a"
    for _ in range(2):  # the grammar is at its end and the end of the answer is banned
        with pytest.raises(GrammarError, match="no token is left"):
            stuck.sample(lab.context, -1)
    with pytest.raises(EngineError):
        stuck.accept_prompt([1])
    assert other.sample(lab.context, -1) == int(lab.logits().argmax())


@pytest.mark.parametrize("grammar", [None, Grammar(text='root ::= "a"')])
@pytest.mark.parametrize("top_k", [0, 40])
def test_an_output_that_is_no_number(lab: Lab, grammar: Grammar | None, top_k: int) -> None:
    lab.decode(lab.tokens(PROMPT), fresh=True)
    logits = lab.llama.llama_get_logits_ith(lab.context, -1)
    for token in range(lab.n_vocab):
        logits[token] = math.nan
    with pytest.raises((EngineError, GrammarError), match="output is not a number; its file may be damaged"):
        lab.sampler([1], {"top_k": top_k}, grammar=grammar).sample(lab.context, -1)


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
