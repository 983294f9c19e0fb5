"""How `pagedrun complete` ends: exit codes, and one clear line for everything that is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pagedrun.errors import EngineError, TemplateError
from tests.cli_fakes import Complete, Fake, folders

SCHEMA = '{"type": "object"}'


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return folders(tmp_path, monkeypatch)


@pytest.fixture
def complete(model: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary) -> Complete:
    return Complete(model, monkeypatch, capfdbinary)


def test_the_end_of_tokens_that_was_asked_for_is_a_good_end(complete) -> None:
    ran = complete(Fake(says="abcdef"), "hi", "-n", "3")
    assert (ran.code, ran.out, ran.err) == (0, "abc", "")
    assert json.loads(complete(Fake(says="abcdef"), "hi", "-n", "3", "--json").out)["finish_reason"] == "length"


def test_a_stop_string_ends_it_and_is_not_shown(complete) -> None:
    ran = complete(Fake(says="one\ntwo"), "hi", "--stop", "\n")
    assert (ran.code, ran.out) == (0, "one")


def test_the_end_of_the_context_is_exit_3_with_the_numbers(complete) -> None:
    ran = complete(Fake(says="x" * 100, size=32), "hi")
    assert (ran.code, ran.out) == (3, "x" * 24)
    assert ran.err.startswith("error: cut off: the context of 32 tokens is full (8 prompt, 24 answer)")


@pytest.mark.parametrize("n", [[], ["-n", "25"]])
def test_prompt_and_answer_never_have_more_tokens_than_the_context(complete, n: list[str]) -> None:
    ran = complete(Fake(says="x" * 100, size=32), "hi", "--json", *n)
    said = json.loads(ran.out)
    assert (ran.code, said["finish_reason"], said["text"]) == (3, "context", "x" * 24)
    usage = said["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (8, 24, 32)


def test_as_many_tokens_as_fit_are_a_good_end_when_they_were_asked_for(complete) -> None:
    ran = complete(Fake(says="x" * 100, size=32), "hi", "-n", "24", "--json")
    assert (ran.code, ran.err, json.loads(ran.out)["finish_reason"]) == (0, "", "length")


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused(complete) -> None:
    ran = complete(Fake(size=32), "x" * 26)
    assert (ran.code, ran.out) == (1, "")
    assert "the prompt has 32 tokens and the context holds 32" in ran.err
    assert "an answer needs room too" in ran.err
    assert complete(Fake(says="abc", size=32), "x" * 25).out == "a"


@pytest.mark.parametrize(
    ("settings", "why", "remedy"),
    [
        ([], "half of the free RAM has no room for more", "set gpu_memory, or use"),
        (["--gpu-memory", "64MiB"], "gpu_memory, 64.0 MiB, has no room for more", "raise gpu_memory, or use"),
    ],
)
def test_a_context_that_memory_has_no_room_for_is_told_once(
    complete, settings: list[str], why: str, remedy: str
) -> None:
    ran = complete(Fake(size=3200), "hi", "--max-seq-len", "4096", *settings)
    first, hint = ran.err.splitlines()
    assert first == f"note: a conversation can have 3,200 of the 4,096 tokens asked for: {why}"
    assert hint.startswith(f"hint:  {remedy}")
    assert (ran.code, ran.out) == (0, "Hello!")
    assert complete(Fake(size=3200), "hi", "--max-seq-len", "3200").err == ""
    assert complete(Fake(size=3200), "hi").err == ""


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
        (["hi", "--kv-type", "q9"], "--kv-type 'q9' is not known"),
        (["hi", "--threads", "-1"], "--threads must be 0 or more"),
        (["hi", "--config", "none.toml"], "cannot read none.toml"),
        (["hi", "--file", "none.txt"], "--file: cannot read none.txt"),
        (["hi", "--file", "."], "--file: cannot read ."),
        (["hi", "--grammar", "none.gbnf"], "--grammar: cannot read none.gbnf"),
        (["hi", "--json-schema", "none.json"], "--json-schema: cannot read none.json"),
        (["hi", "--json-schema", "{nonsense"], "--json-schema is not JSON"),
        (["hi", "--json-schema", "words.json"], "--json-schema words.json is not JSON"),
        (["hi", "--json-schema", ""], "--json-schema needs a file or a schema"),
        (["hi", "-f", ""], "--file needs the name of a file"),
        (["hi", "-f", "-"], "hint:  standard input is read anyway"),
        (["hi", "--seed", "-1"], "seed must be from 0 to 4294967294, not -1"),
        (["hi", "--repeat-last-n", "-1"], "repeat_last_n must be from 0 to 1048576"),
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
    (tmp_path / "words.json").write_text("no JSON")
    fake = Fake()
    ran = complete(fake, *args)
    assert ran.out == ""
    assert says in ran.err
    assert ran.code == (1 if says == "PROMPT is empty" else 2)
    assert fake.loads == []
    assert ran.err.startswith("error: ") and len(ran.err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("PAGEDRUN_THREAD", "PAGEDRUN_THREADS"),
        ("PAGEDRUN_MAX_SEQ_LENGTH", "PAGEDRUN_MAX_SEQ_LEN"),
        ("PAGEDRUN_SEQ_LEN", "PAGEDRUN_MAX_SEQ_LEN"),
        ("PAGEDRUN_KVTYPE", "PAGEDRUN_KV_TYPE"),
    ],
)
def test_a_misspelt_variable_is_wrong_usage(
    complete, monkeypatch: pytest.MonkeyPatch, variable: str, meant: str
) -> None:
    monkeypatch.setenv(variable, "8")
    ran = complete(Fake(), "hi")
    assert (ran.code, ran.out) == (2, "")
    assert f"there is no setting {variable}\nhint:  did you mean {meant}?" in ran.err
    monkeypatch.setenv(variable, "")
    assert complete(Fake(), "hi").code == 0


def test_variables_that_are_no_settings_are_left_alone(complete, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CACHE", "MODELS", "STATE", "CONFIG", "AUTO_SETUP", "BUILD_ID", "DOOR", "TEST_VOCAB", "TEST_HEADER"):
        monkeypatch.setenv(f"PAGEDRUN_{name}", os.environ.get(f"PAGEDRUN_{name}", "x"))
    assert complete(Fake(), "hi").code == 0


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
    assert ran.err.endswith("hint:  run: pagedrun setup (or add --pull)\n")


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
