"""`pagedrun show`: what it says of a file, of a name, of what is not here; for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pagedrun import machine
from pagedrun.cli import console, main
from pagedrun.memory import FreeMemory
from tests.gguf_bytes import STRING, entry, text, u32, write
from tests.gguf_models import shape_of, write_gguf
from tests.hub_fakes import make_home

TEMPLATE = "{% for m in messages %}\n{{ m.content }}\n{% endfor %}"
REGISTRY = """
[models.small]
title = "Small Model"
source = "hf:me/small"
file = "Small-Q4_K_M.gguf"
license = "mit"
think = false
[models.small.sampling]
temperature = 0.5
[models.small.sampling.thinking]
top_k = 7
[models.windows]
source = "hf:me/windows"
file = "w.gguf"
size = 64000000000
context = 1024
kv = { layers = 2, heads = 1, head_dim = 64, sliding_layers = 2, window = 128 }
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_home(tmp_path, monkeypatch)
    with (tmp_path / "config" / "models.toml").open("a") as file:
        file.write(REGISTRY)
    monkeypatch.setattr(machine, "free_memory", lambda on=None: FreeMemory(8 << 30))
    return tmp_path


@pytest.fixture
def model(home: Path) -> Path:
    tensors = {"token_embd.weight": (32, 10), "blk.0.ffn_gate_exps.weight": (32, 8, 4), "output_norm.weight": (32,)}
    return write_gguf(
        home / "m.gguf",
        "llama",
        tensors,
        **shape_of(__expert_count=4, __expert_used_count=2, __attention__head_count_kv=2),
        general__name="A Model",
        general__license="apache-2.0",
        general__sampling__temp=0.95,
        tokenizer__ggml__tokens=[f"token{i}" for i in range(300)],
        tokenizer__chat_template=TEMPLATE,
        tokenizer__chat_template__rag="x",
    )


def show(capsys: Any, *args: str, code: int = 0) -> str:
    assert main.run(["show", *args]) == code
    out: str = capsys.readouterr().out
    return out


def lines_of(out: str) -> dict[str, str]:
    return {line[:18].strip(): line[18:] for line in out.split("\n\n", maxsplit=1)[0].splitlines()}


def test_the_overview_of_a_file(capsys: Any, model: Path) -> None:
    out = show(capsys, "m.gguf")
    assert lines_of(out) == {
        "title": "A Model",
        "file": str(model),
        "size": f"{model.stat().st_size / 1024:.1f} KiB",
        "architecture": "llama",
        "parameters": "1,376",
        "quantisation": "F32, 32.00 bits per weight",
        "layers": "4",
        "experts": "4 in a layer, 2 of them used for a token",
        "context": "4,096 tokens",
        "vocabulary": "300 tokens",
        "KV per token": "512 B (f16), 272 B (q8_0), 144 B (q4_0), in 4 layers",
        "full context": "2.0 MiB (f16), 1.1 MiB (q8_0), 576 KiB (q4_0)",
        "sampling": "temperature 0.95 (file)",
        "licence": "apache-2.0",
        "chat template": "the file's, 3 lines; the file also has: rag",
        "this machine": "fits RAM",
    }
    assert [line.split() for line in out.split("\n\n")[1].splitlines()] == [
        ["GROUP", "TENSORS", "PARAMETERS", "TYPES", "SIZE", "SHARE"],
        ["token", "embeddings", "1", "320", "F32", "x", "1", "1.2", "KiB", "23.3", "%"],
        ["routed", "experts", "1", "1,024", "F32", "x", "1", "4.0", "KiB", "74.4", "%"],
        ["norms", "1", "32", "F32", "x", "1", "128", "B", "2.3", "%"],
    ]


def test_the_registry_knows_more_and_knows_it_better(capsys: Any, model: Path, home: Path) -> None:
    model.rename(home / "models" / "Small-Q4_K_M.gguf")
    found = lines_of(show(capsys, "small"))
    assert (found["name"], found["title"], found["place"]) == ("small", "Small Model", "pagedrun")
    assert (found["licence"], found["thinking"]) == ("mit", "off, unless --think")
    out = show(capsys, "small")
    assert "temperature 0.5 (registry)" in out
    assert "top_k 7 (registry, thinking)" in out
    assert "temperature 0.95 (file)" in out


def test_of_an_absent_model_the_registry_is_shown(capsys: Any) -> None:
    assert main.run(["show", "windows"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "windows is not on this machine; get it with: pagedrun pull windows\n"
    assert lines_of(captured.out) == {
        "name": "windows",
        "title": "windows",
        "source": "hf:me/windows, w.gguf",
        "size": "59.6 GiB",
        "context": "1,024 tokens",
        "KV per token": "512 B (f16), 272 B (q8_0), 144 B (q4_0), in 2 layers",
        "sliding window": "128 tokens, in 2 more layers",
        "full context": "896 KiB (f16), 476 KiB (q8_0), 252 KiB (q4_0)",
        "licence": "not known",
        "this machine": "does not fit: 51.9 GiB more than this machine has free",
    }


def test_what_is_nowhere_is_an_error(capsys: Any) -> None:
    assert main.run(["show", "smal"]) == 1
    assert "small" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--tensors", "--metadata", "--template"])
def test_of_an_absent_model_there_are_no_tensors(capsys: Any, option: str) -> None:
    assert main.run(["show", "windows", option]) == 1
    assert capsys.readouterr().err == "error: windows is not on this machine\nhint:  run: pagedrun pull windows\n"


def test_without_a_name_and_a_model_the_default_is_shown(capsys: Any) -> None:
    assert main.run(["show"]) == 0
    captured = capsys.readouterr()
    assert lines_of(captured.out)["name"] == "tiny"
    assert "pagedrun pull tiny" in captured.err


def test_floats_are_shown_as_they_were_meant(capsys: Any, home: Path) -> None:
    write_gguf(home / "m.gguf", "llama", eps=1e-05, list=[0.1, 2.5])
    rows = dict(line.split(maxsplit=1) for line in show(capsys, "m.gguf", "--metadata").splitlines())
    assert (rows["eps"], rows["list"]) == ("1e-05", "2 x float32: 0.1, 2.5")


def test_every_tensor(capsys: Any, model: Path) -> None:
    rows = [line.split() for line in show(capsys, "m.gguf", "--tensors").splitlines()]
    assert rows[0] == ["TENSOR", "GROUP", "TYPE", "SHAPE", "SIZE"]
    assert rows[2] == ["blk.0.ffn_gate_exps.weight", "routed", "experts", "F32", "32", "x", "8", "x", "4", "4.0", "KiB"]
    assert len(rows) == 4


def test_metadata_are_one_line_each(capsys: Any, model: Path) -> None:
    rows = dict(line.split(maxsplit=1) for line in show(capsys, "m.gguf", "--metadata").splitlines())
    assert rows["general.architecture"] == "llama"
    assert rows["llama.block_count"] == "4"
    assert rows["tokenizer.ggml.tokens"] == "300 x text: 'token0', 'token1', 'token2', 'token3', ..."
    assert rows["tokenizer.chat_template"] == "{% for m in messages %} {{ m.content }} {% endfor %}"


def test_long_values_are_cut(capsys: Any, home: Path) -> None:
    write(home, [entry("long", STRING, text("x" * 500)), entry("longer", STRING, text("y" * (2 << 20)))])
    out = show(capsys, "m.gguf", "--metadata")
    assert "x" * 97 + "...\n" in out and "x" * 98 not in out
    assert "a text of 2.0 MiB" in out


def test_the_template_as_it_is(capsys: Any, model: Path) -> None:
    assert show(capsys, "m.gguf", "--template") == TEMPLATE + "\n"


def test_no_template_is_an_error(capsys: Any, home: Path) -> None:
    write_gguf(home / "m.gguf", "llama")
    assert main.run(["show", "m.gguf", "--template"]) == 1
    assert "m.gguf has no chat template" in capsys.readouterr().err


def test_json_is_one_object(capsys: Any, model: Path) -> None:
    found = json.loads(show(capsys, "m.gguf", "--json"))
    assert (found["here"], found["kind"], found["architecture"]) == (True, "model", "llama")
    assert (found["size"], found["weights_size"], found["parameters"]) == (model.stat().st_size, 5504, 1376)
    assert found["kv"]["bytes_per_token"] == {"f16": 512.0, "q8_0": 272.0, "q4_0": 144.0}
    assert found["kv"]["bytes_full_context"]["f16"] == 2 << 20
    assert found["experts"] == {"count": 4, "used": 2}
    assert found["sampling"] == {"registry": {}, "file": {"temperature": 0.95}}
    assert found["template"] == {"from": "file", "names": ["", "rag"]}
    assert found["fit"] == {"fits": True, "where": "ram", "missing": 0}
    assert [group["name"] for group in found["groups"]] == ["token embeddings", "routed experts", "norms"]
    assert "tensors" not in found and "metadata" not in found


def test_json_with_all_of_it(capsys: Any, model: Path) -> None:
    found = json.loads(show(capsys, "m.gguf", "--json", "--tensors", "--metadata", "--template"))
    assert found["tensors"][1]["shape"] == [32, 8, 4]
    assert found["metadata"]["llama.block_count"] == 4
    assert found["metadata"]["tokenizer.ggml.tokens"]["count"] == 300
    assert found["metadata"]["tokenizer.ggml.tokens"]["first"][:2] == ["token0", "token1"]
    assert found["template"]["text"] == TEMPLATE


def test_json_has_no_nan(capsys: Any, home: Path) -> None:
    write_gguf(home / "m.gguf", "llama", x=float("nan"), y=float("inf"), z=[0.5, float("nan")])
    found = json.loads(show(capsys, "m.gguf", "--json", "--metadata"), parse_constant=pytest.fail)
    assert (found["metadata"]["x"], found["metadata"]["y"]) == (None, None)
    assert found["metadata"]["z"]["first"] == [0.5, None]


def test_json_of_an_absent_model(capsys: Any) -> None:
    found = json.loads(show(capsys, "windows", "--json", "--tensors"))
    assert (found["here"], found["parts"], found["groups"], found["size"]) == (False, [], [], 64_000_000_000)
    assert found["kv"]["window"] == 128
    assert found["fit"]["fits"] is False


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"general__type": "imatrix"}, "an importance matrix"),
        ({"general__type": "mmproj"}, "the image part"),
        ({"general__type": "adapter"}, "an adapter"),
        ({"tokenizer__ggml__tokens": ["a"]}, "a vocabulary without weights"),
    ],
)
def test_other_kinds_say_what_they_are(capsys: Any, home: Path, metadata: dict[str, Any], says: str) -> None:
    write_gguf(home / "m.gguf", "llama", **shape_of(), **metadata)
    found = lines_of(show(capsys, "m.gguf"))
    assert says in found["kind"]
    assert "KV per token" not in found and "this machine" not in found


def test_an_unknown_architecture_is_shown_as_far_as_it_goes(capsys: Any, home: Path) -> None:
    write_gguf(home / "m.gguf", "brandnew", {"blk.0.magic.weight": (4, 4)}, __block_count=2)
    out = show(capsys, "m.gguf")
    assert lines_of(out)["KV cache"] == "not known: the file does not say"
    assert "other" in out


def test_the_parts_of_a_split_model(capsys: Any, home: Path) -> None:
    for number, name in ((1, "token_embd.weight"), (2, "output.weight")):
        write_gguf(home / f"m-0000{number}-of-00002.gguf", "llama", {name: (8, 4)}, **shape_of())
    assert lines_of(show(capsys, "m-00001-of-00002.gguf"))["size"].endswith(", in 2 parts")
    assert main.run(["show", "m-00002-of-00002.gguf"]) == 1


def test_names_in_the_file_cannot_drive_the_terminal(capsys: Any, home: Path) -> None:
    evil = "a\x1b[31m\nname              fake"
    write(home, [entry("general.name", STRING, text(evil)), entry(evil, STRING, text(evil)), u32("x", 1)])
    out = show(capsys, "m.gguf") + show(capsys, "m.gguf", "--metadata")
    assert "\x1b" not in out
    assert "name" not in lines_of(out)


def test_on_a_terminal_long_lines_are_wrapped_and_the_path_is_not(
    capsys: Any, home: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    path = model.rename(home / f"{'long  name ' * 8}.gguf")
    lines = show(capsys, path.name).splitlines()
    assert f"file              {path}" in lines
    at = lines.index("KV per token      512 B (f16), 272 B (q8_0), 144 B (q4_0),")
    assert lines[at + 1] == " " * 18 + "in 4 layers"


def test_a_damaged_file_is_an_error(capsys: Any, model: Path) -> None:
    model.write_bytes(model.read_bytes()[:-4000])
    assert main.run(["show", "m.gguf"]) == 1
    assert "is truncated" in capsys.readouterr().err
