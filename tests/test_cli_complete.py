"""`pagedrun complete` over a fake service: what it asks, what it writes where, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagedrun.cli import console, main
from pagedrun.errors import EngineError, TemplateError
from tests.cli_fakes import Fake, folders

SCHEMA = '{"type": "object"}'


class Ran:
    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code, self.out, self.err = code, out.decode(), err.decode()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(console, "verbose", False)
    return folders(tmp_path, monkeypatch)


@pytest.fixture
def complete(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary):
    """Run `pagedrun complete -m model.gguf ARGS` with `stdin` (None: /dev/null) against a fake."""

    def run(fake: Fake, *args: str, stdin: bytes | None = None) -> Ran:
        fake.install(monkeypatch.setattr)
        source = Path("/dev/null")
        if stdin is not None:
            source = tmp_path / "stdin"
            source.write_bytes(stdin)
        with source.open() as file:
            monkeypatch.setattr("sys.stdin", file)
            code = main.run(["complete", "-m", str(model), *args])
        return Ran(code, *capfdbinary.readouterr())

    return run


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
    more = "--stop X --stop Y --no-think --max-seq-len 99 --threads 2 --gpu-layers 0 --kv-type q8_0"
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
    assert (config.max_seq_len, config.threads, config.gpu_layers, config.kv_type) == (99, 2, 0, "q8_0")


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


def test_it_becomes_the_model_used_last(complete, tmp_path: Path, model: Path) -> None:
    complete(Fake(), "hi")
    assert (tmp_path / "state" / "last-model").read_text() == f"{model}\n"


# --- how it ends ---


def test_the_end_of_tokens_that_was_asked_for_is_a_good_end(complete) -> None:
    ran = complete(Fake(says="abcdef"), "hi", "-n", "3")
    assert (ran.code, ran.out, ran.err) == (0, "abc", "")
    assert json.loads(complete(Fake(says="abcdef"), "hi", "-n", "3", "--json").out)["finish_reason"] == "length"


def test_a_stop_string_ends_it_and_is_not_shown(complete) -> None:
    ran = complete(Fake(says="one\ntwo"), "hi", "--stop", "\n")
    assert (ran.code, ran.out) == (0, "one")


def test_the_end_of_the_context_is_exit_3_with_the_numbers(complete) -> None:
    ran = complete(Fake(says="x" * 100, size=32), "hi")
    assert ran.code == 3
    assert set(ran.out) == {"x"} and len(ran.out) >= 24
    assert ran.err.startswith("error: cut off: the context of 32 tokens is full (8 prompt, the answer 25 tokens)")
    ran = complete(Fake(says="x" * 100, size=32), "hi", "--json")
    assert (ran.code, json.loads(ran.out)["finish_reason"]) == (3, "context")


def test_schema_output_that_was_cut_is_exit_3(complete) -> None:
    ran = complete(Fake(says='{"a": 1}'), "hi", "--json-schema", SCHEMA, "-n", "4")
    assert (ran.code, ran.out) == (3, '{"a"')
    assert "the JSON is incomplete: it was cut off after 4 tokens" in ran.err
    ran = complete(Fake(says='{"a": 1}'), "hi", "--json-schema", SCHEMA, "--stop", ":")
    assert (ran.code, ran.out) == (1, '{"a"')
    assert "not complete JSON" in ran.err
    ran = complete(Fake(says='{"a": 1}'), "hi", "--json-schema", SCHEMA, "-n", "8")
    assert (ran.code, ran.err) == (0, "")


def test_a_failure_in_the_middle_is_one_error_line(complete) -> None:
    ran = complete(Fake(fail=EngineError("decoding failed", hint="try again")), "hi")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "error: decoding failed\nhint:  try again\n"


def test_a_model_without_a_template_is_told_what_to_do(complete) -> None:
    ran = complete(Fake(render_error=TemplateError("no chat template", hint="use --raw")), "hi")
    assert (ran.code, ran.out, ran.err) == (1, "", "error: no chat template\nhint:  use --raw\n")


@pytest.mark.parametrize(
    ("stdin", "code", "says"),
    [
        (b"", 1, "standard input is empty"),
        (b" \n\t", 1, "standard input has nothing but white space (3 bytes)"),
        (b"abc\xff\xfe", 1, "standard input is not UTF-8 text: byte 4 of 5 bytes is 0xff"),
        (b"ab\0c", 1, "standard input is not text: byte 3 of 4 bytes is NUL"),
        (b"x" * 5000, 1, "the prompt has 5,006 tokens and the context holds 4,096"),
        (b"x" * ((64 << 20) + 1), 1, "standard input has more than 64.0 MiB"),
    ],
)
def test_unusable_input_is_one_clear_line(complete, stdin: bytes, code: int, says: str) -> None:
    ran = complete(Fake(), stdin=stdin)
    assert (ran.code, ran.out) == (code, "")
    error, *hints = ran.err.splitlines()
    assert error.startswith(f"error: {says}")
    assert len(hints) <= 1


def test_empty_input_is_refused_even_with_a_prompt(complete) -> None:
    # `git diff | pagedrun complete "Write a commit message"` where nothing changed must not invent one.
    ran = complete(Fake(), "Write a commit message", stdin=b"")
    assert (ran.code, ran.out) == (1, "")
    assert "/dev/null" in ran.err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "there is no prompt"),
        ([""], "PROMPT is empty"),
        (["hi", "-n", "0"], "-n must be 1 or more"),
        (["hi", "-n", "many"], "invalid value"),
        (["hi", "--stop", ""], "--stop needs some text"),
        (["hi", "--temp", "-1"], "temperature must be 0 or more"),
        (["hi", "--top-p", "1.5"], "top_p must be from 0 to 1"),
        (["hi", "--logit-bias", "5"], "--logit-bias '5' is not TOKEN_ID=BIAS"),
        (["hi", "--logit-bias", "5=nan"], "--logit-bias '5=nan'"),
        (["hi", "--kv-type", "q9"], "kv_type 'q9' is not known"),
        (["hi", "--threads", "-1"], "threads must be 0 or more"),
        (["hi", "--config", "none.toml"], "cannot read none.toml"),
        (["hi", "--file", "none.txt"], "--file: cannot read none.txt"),
        (["hi", "--file", "."], "--file: cannot read ."),
        (["hi", "--grammar", "none.gbnf"], "--grammar: cannot read none.gbnf"),
        (["hi", "--json-schema", "none.json"], "--json-schema: cannot read none.json"),
        (["hi", "--json-schema", "{nonsense"], "--json-schema is not JSON"),
        (["hi", "--json-schema", "list.json"], "--json-schema list.json is not a JSON schema"),
        (["hi", "--json-schema", "{}", "--grammar", "g"], "exclude each other"),
        (["hi", "--chat-template", "none.jinja"], "--chat-template: cannot read none.jinja"),
        (["hi", "--chat-template", "/dev/null"], "--chat-template: /dev/null is empty"),
        (["hi", "--raw", "--system", "x"], "--system belongs to the chat template"),
        (["hi", "--raw", "--no-think"], "--think belongs to the chat template"),
        (["hi", "--bogus"], "no such option: --bogus"),
        (["hi", "there"], "got unexpected extra argument"),
    ],
)
def test_wrong_usage_is_exit_2_before_anything_is_loaded(complete, tmp_path: Path, args: list[str], says: str) -> None:
    (tmp_path / "list.json").write_text("[]")
    fake = Fake()
    ran = complete(fake, *args)
    assert ran.out == ""
    assert says in ran.err
    assert ran.code == (1 if says == "PROMPT is empty" else 2)
    assert fake.loads == []
    assert ran.err.startswith("error: ") and len(ran.err.splitlines()) <= 2


def test_an_absent_model_is_an_error_before_the_input_is_read(complete, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagedrun.cli.inputs.assemble", lambda *a, **k: pytest.fail("was read"))
    ran = complete(Fake(), "hi", "-m", "qwen3.6-35")
    assert ran.code == 1
    assert "did you mean qwen3.6-35b" in ran.err


def test_a_model_for_embeddings_is_refused(complete, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "models.toml").write_text(
        '[models.emb]\nsource = "hf:a/b"\nfile = "model.gguf"\ntask = "embed"\nsize = 4\n'
    )
    ran = complete(Fake(), "hi")
    assert (ran.code, ran.out) == (1, "")
    assert "does not generate text" in ran.err


def test_a_missing_default_says_to_run_setup(complete, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = complete(Fake(), "hi", "-m", "smollm2-135m")
    assert ran.code == 1
    assert ran.err.endswith("hint:  run: pagedrun setup\n")


def test_the_launcher_has_a_missing_default_fetched(complete, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(on_progress: object) -> Path:
        path = tmp_path / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
        path.parent.mkdir()
        path.touch()
        with path.open("r+b") as file:
            file.truncate(98_362_432)
        return path

    monkeypatch.setenv("PAGEDRUN_AUTO_SETUP", "1")
    monkeypatch.setattr("pagedrun.hub.fetch_default_model", fetch)
    fake = Fake()
    assert complete(fake, "hi", "-m", "smollm2").code == 0
    assert fake.loads[0]["path"].parent == tmp_path / "models"
    assert complete(Fake(), "hi", "-m", "qwen3.6-35b").code == 1  # nothing else is fetched


def test_the_cpu_notice_is_shown_on_stderr(complete, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    install = fake.install

    def with_notice(setattr_) -> None:
        install(setattr_)
        setattr_("pagedrun.runtime.store.cpu_notice", lambda runtime: "running on the CPU although ...")

    monkeypatch.setattr(fake, "install", with_notice)
    ran = complete(fake, "hi")
    assert (ran.out, ran.err) == ("Hello!", "running on the CPU although ...\n")
