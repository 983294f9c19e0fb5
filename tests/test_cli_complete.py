"""`pagedrun complete` over a fake service: what it asks, and what it writes where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli_fakes import Complete, Fake, folders

SCHEMA = '{"type": "object"}'


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return folders(tmp_path, monkeypatch)


@pytest.fixture
def complete(model: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary) -> Complete:
    return Complete(model, monkeypatch, capfdbinary)


# --- what is asked ---


@pytest.mark.parametrize(
    ("args", "stdin", "prompt"),
    [
        (["Say hi"], None, "user:Say hi\n"),
        (["Translate"], b"bonjour\n", "user:Translate\n\nbonjour\n"),
        ([], b"\n\nbonjour\r\n", "user:bonjour\n"),
        (["-"], b"bonjour", "user:bonjour\n"),
        (["Compare", "-f", "a.txt", "--file", "b.txt"], b"C", "user:Compare\n\nAA\n\nBB\n\nC\n"),
        (["-", "-f", "a.txt"], b"C", "user:C\n\nAA\n"),
        (["Hi", "--system", "Be brief"], None, "system:Be brief\nuser:Hi\n"),
        ([], b"\xef\xbb\xbfwith a byte order mark", "user:with a byte order mark\n"),
        (["  indented\n"], None, "user:  indented\n"),
    ],
)
def test_the_prompt_is_put_together_in_the_documented_order(
    complete, tmp_path: Path, args: list[str], stdin: bytes | None, prompt: str
) -> None:
    (tmp_path / "a.txt").write_text("AA\n")
    (tmp_path / "b.txt").write_text("\nBB")
    fake = Fake()
    ran = complete(fake, *args, stdin=stdin)
    assert (ran.code, ran.err) == (0, "")
    assert fake.prompt.decode() == prompt


@pytest.mark.parametrize(
    ("args", "stdin", "prompt"),
    [
        ([], b"The capital of France is", b"The capital of France is"),
        ([], b"\xef\xbb\xbf\n a \r\n\n", b"\xef\xbb\xbf\n a \r\n\n"),
        ([], b" ", b" "),
        (["one\n"], b"\ntwo\n", b"one\n\ntwo\n"),
        (["-", "-f", "a.txt"], b"in", b"inAA\n"),
    ],
)
def test_raw_takes_every_byte_as_it_is(
    complete, tmp_path: Path, args: list[str], stdin: bytes | None, prompt: bytes
) -> None:
    (tmp_path / "a.txt").write_text("AA\n")
    fake = Fake()
    ran = complete(fake, "--raw", *args, stdin=stdin)
    assert (ran.code, ran.out, ran.err) == (0, "Hello!", "")
    assert fake.prompt == prompt
    assert fake.templates is not None and fake.templates.asked == []


def test_settings_reach_the_request_the_template_and_the_loader(complete, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ x }}")
    fake = Fake()
    flags = "--temp 0.5 --top-k 3 --seed 7 --logit-bias 5=-inf --logit-bias 6=1.5 --ignore-eos --typical 0.9 -n 2"
    more = "--stop X --stop Y --no-think --max-seq-len 99 --rope-scaling yarn --threads 2 --gpu-layers 0 --kv-type q8_0"
    complete(fake, "hi", *flags.split(), *more.split(), "--chat-template", "t.jinja")
    sampling = fake.request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.typical_p, sampling.seed) == (0.5, 3, 0.9, 7)
    assert sampling.logit_bias == ((5, float("-inf")), (6, 1.5)) and sampling.ignore_eos
    assert fake.request.max_tokens == 2
    assert fake.request.stop == ("<stop>", "X", "Y")  # the template's own stays
    assert fake.chat_options.think is False
    (loaded,) = fake.loads
    assert loaded["chat_template"] == "{{ x }}"
    config = loaded["config"]
    assert (config.max_seq_len, config.rope_scaling) == (99, "yarn")
    assert (config.threads, config.gpu_layers, config.kv_type) == (2, 0, "q8_0")


def test_flags_go_before_the_environment_and_that_before_the_file(
    complete, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.toml").write_text("threads = 3\nmax_seq_len = 33\nkv_type = 'q8_0'\n")
    monkeypatch.setenv("PAGEDRUN_MAX_SEQ_LEN", "44")
    monkeypatch.setenv("PAGEDRUN_THREADS", "4")
    fake = Fake()
    assert complete(fake, "hi", "--config", "c.toml", "--threads", "5").code == 0
    config = fake.loads[0]["config"]
    assert (config.threads, config.max_seq_len, config.kv_type) == (5, 44, "q8_0")


def test_the_registry_decides_sampling_and_thinking_unless_told(complete, tmp_path: Path, model: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "models.toml").write_text(
        f"""[models.mine]
        source = "hf:me/mine"
        file = "model.gguf"
        size = {model.stat().st_size}
        think = false
        sampling = {{top_k = 9, thinking = {{top_p = 0.1}}, plain = {{top_p = 0.2}}}}
        """
    )
    fake = Fake()
    complete(fake, "hi")
    assert fake.loads[0]["sampling_defaults"] == {"top_k": 9, "top_p": 0.2}
    assert fake.chat_options.think is False
    fake = Fake()
    complete(fake, "hi", "--think")
    assert fake.loads[0]["sampling_defaults"] == {"top_k": 9, "top_p": 0.1}
    assert fake.chat_options.think is True


@pytest.mark.parametrize("raw", [[], ["--raw"]])
def test_schema_and_grammar_come_from_a_file_or_inline(complete, tmp_path: Path, raw: list[str]) -> None:
    (tmp_path / "s.json").write_text(SCHEMA)
    (tmp_path / "g.gbnf").write_text('root ::= "x"')
    for option in (["--json-schema", SCHEMA], ["--json-schema", "s.json"], ["--grammar", "g.gbnf"]):
        fake = Fake(says="{}")
        assert complete(fake, "hi", *option, *raw).code == 0
        assert fake.request.grammar is not None
        assert fake.request.grammar.text == ('root ::= "x"' if "g.gbnf" in option else f"schema {SCHEMA}")


# --- what is written ---


def test_a_pipe_gets_exactly_the_answer(complete) -> None:
    said = "Grüße\x1b[1m\n\n 👋 end"
    for flags in ([], ["--no-stream"]):
        ran = complete(Fake(says=said), "hi", *flags)
        assert (ran.code, ran.out, ran.err) == (0, said, "")


def test_thinking_is_never_on_stdout(complete) -> None:
    ran = complete(Fake(says="<think>hm</think>yes"), "hi")
    assert (ran.out, ran.err) == ("yes", "")


def test_an_answer_that_never_stopped_thinking_says_so(complete) -> None:
    ran = complete(Fake(says="<think>hm"), "hi", "-n", "9")
    assert (ran.code, ran.out) == (0, "")
    assert "after 9 tokens while still thinking" in ran.err


def test_json_is_one_object_with_everything(complete, model: Path) -> None:
    ran = complete(Fake(says="<think>hm</think>jä"), "hi", "--json", "--seed", "5")
    assert ran.out.endswith("}\n") and "jä" in ran.out
    answer = json.loads(ran.out)
    assert answer["text"] == "jä" and answer["reasoning"] == "hm"
    assert (answer["finish_reason"], answer["seed"], answer["model"]) == ("stop", 5, str(model))
    n = len("<think>hm</think>jä".encode())
    assert answer["usage"]["prompt_tokens"] == len("user:hi\n")
    assert answer["usage"]["completion_tokens"] in (n, n + 1)  # with or without the end token
    assert answer["usage"]["total_tokens"] == len("user:hi\n") + answer["usage"]["completion_tokens"]
    timings = answer["timings"]
    assert timings["prompt_tokens_per_s"] == pytest.approx(len("user:hi\n") / timings["prompt_s"])
    assert timings["decode_tokens_per_s"] == pytest.approx(
        (answer["usage"]["completion_tokens"] - 1) / timings["decode_s"]
    )


def test_without_a_seed_one_is_drawn_and_told(complete) -> None:
    seeds = {json.loads(complete(Fake(), "hi", "--json").out)["seed"] for _ in range(3)}
    assert len(seeds) == 3
    assert all(0 <= s < 2**32 - 1 for s in seeds)


def test_it_does_not_become_the_model_used_last(complete, tmp_path: Path) -> None:
    assert complete(Fake(), "hi").code == 0
    assert not (tmp_path / "state" / "last-model").exists()
