"""Contexts longer than a model was trained for: what llama.cpp is asked for, what is refused, what comes of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pagedrun import machine, speeds
from pagedrun.cli import main
from pagedrun.config import EngineConfig, load_config
from pagedrun.errors import NotEnoughMemoryError, UsageError
from pagedrun.gguf_file import read_facts
from pagedrun.load import load_service
from pagedrun.native.context import NativeContext
from pagedrun.native.library import Library
from pagedrun.native.model import NativeModel
from pagedrun.native.runner import NativeRunner
from pagedrun.plan import shape_of
from pagedrun.plan.rules import GIB
from pagedrun.request import GenerationRequest, TextDelta
from pagedrun.rope import MAX_FACTOR, Yarn, yarn_of
from pagedrun.runtime.store import find_runtime
from pagedrun.sampling import SamplingParams
from pagedrun.service import Service
from tests import gguf_models
from tests.cli_fakes import folders
from tests.gguf_bytes import u32
from tests.paged_models import Stock, tokens_of
from tests.plan_models import machine_with, planned, write_hollow

LONG = {"max_seq_len": 1 << 20, "rope_scaling": "yarn", "swap_space": 32 * GIB}


def test_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.toml").write_text('rope_scaling = "YaRN"')
    assert EngineConfig().rope_scaling == "none"
    assert load_config(file=tmp_path / "c.toml").rope_scaling == "yarn"
    monkeypatch.setenv("PAGEDRUN_ROPE_SCALING", "none")
    assert load_config(file=tmp_path / "c.toml").rope_scaling == "none"
    assert load_config({"rope_scaling": "yarn"}, file=tmp_path / "c.toml").rope_scaling == "yarn"
    with pytest.raises(UsageError, match="--rope-scaling 'linear' is not known") as e:
        load_config({"rope_scaling": "linear"})
    assert e.value.hint == "one of none, yarn"


def yarn(tmp_path: Path, asked: int, scaling: str = "yarn", **metadata: Any) -> Yarn | None:
    """For a model that was trained for 4,096 tokens."""
    shape = gguf_models.shape_of(**{f"__rope__{key}": value for key, value in metadata.items()})
    path = gguf_models.write_gguf(tmp_path / "m.gguf", "llama", {"token_embd.weight": (8, 4)}, **shape)
    return yarn_of(read_facts(path), EngineConfig(max_seq_len=asked, rope_scaling=scaling))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(0, None), (4096, None), (4097, 4097 / 4096), (16_384, 4.0), (MAX_FACTOR * 4096, 32.0)],
)
def test_positions_are_scaled_by_what_is_asked_for(tmp_path: Path, asked: int, expected: float | None) -> None:
    assert yarn(tmp_path, asked) == (expected and Yarn(expected, 4096))
    if expected is None:
        assert yarn(tmp_path, asked, "none") is None


@pytest.mark.parametrize(
    ("asked", "scaling", "says", "hint"),
    [
        (4097, "none", "", "use --max-seq-len 4096 or less; --rope-scaling yarn goes beyond that"),
        (MAX_FACTOR * 4096 + 1, "none", "", "use --max-seq-len 4096 or less"),
        (MAX_FACTOR * 4096 + 1, "yarn", ": YaRN scales by 32 at most", "use --max-seq-len 131072 or less"),
    ],
)
def test_what_is_too_long_is_refused(tmp_path: Path, asked: int, scaling: str, says: str, hint: str) -> None:
    with pytest.raises(UsageError) as e:
        yarn(tmp_path, asked, scaling)
    assert e.value.message == f"m.gguf was trained for 4,096 tokens, and max_seq_len is {asked:,}{says}"
    assert e.value.hint == hint


def test_a_file_that_has_yarn_goes_on_from_there(tmp_path: Path) -> None:
    own = {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__original_context_length": 1024}
    assert yarn(tmp_path, 4096, **own) is None
    assert yarn(tmp_path, 8192, **own) == Yarn(8.0, 1024)
    assert yarn(tmp_path, 8192, scaling__type="yarn") == Yarn(2.0, 4096)


@pytest.mark.parametrize(
    ("own", "kind"),
    [
        ({"scaling__type": "linear", "scaling__factor": 8.0}, "linear"),
        ({"scale_linear": 2.0}, "linear"),
        ({"scaling__type": "longrope"}, "longrope"),
    ],
)
def test_other_scaling_of_a_file_is_kept(tmp_path: Path, own: dict[str, Any], kind: str) -> None:
    assert yarn(tmp_path, 4096, **own) is None
    with pytest.raises(UsageError, match=rf"scaled already \({kind}\)") as e:
        yarn(tmp_path, 8192, **own)
    assert e.value.hint == "use --max-seq-len 4096 or less"


def test_scaling_that_changes_nothing_is_none(tmp_path: Path) -> None:
    for own in ({"scaling__type": "none"}, {"scaling__type": "linear", "scaling__factor": 1.0}, {"scale_linear": 0.0}):
        assert yarn(tmp_path, 8192, **own) == Yarn(2.0, 4096)


def test_factors_by_length_are_a_scaling_too(tmp_path: Path) -> None:
    tensors = {"rope_factors_long.weight": (8,)}
    path = gguf_models.write_gguf(tmp_path / "m.gguf", "phi3", tensors, **gguf_models.shape_of())
    with pytest.raises(UsageError, match=r"scaled already \(longrope\)"):
        yarn_of(read_facts(path), EngineConfig(max_seq_len=8192, rope_scaling="yarn"))


def test_nothing_else_of_the_parameters_is_touched() -> None:
    params = SimpleNamespace()
    Yarn(4.0, 262_144).fill(params)
    assert vars(params) == {"rope_scaling_type": 2, "rope_freq_scale": 0.25, "yarn_orig_ctx": 262_144}


def test_a_plan_says_that_positions_are_scaled(tmp_path: Path) -> None:
    shape = shape_of(read_facts(write_hollow(tmp_path / "35b.gguf")))
    for plan in (planned(shape, machine_with(6, 96), **LONG), planned(shape, machine_with(0, 96), **LONG)):
        assert plan.fits and plan.settings.max_seq_len == 1 << 20
        assert "Positions are scaled by 4 (YaRN), as the model was trained for 262,144 tokens" in plan.reasons[-1]
    within = planned(shape, machine_with(6, 96), **LONG | {"max_seq_len": 262_144})
    assert within == planned(shape, machine_with(6, 96), **LONG | {"max_seq_len": 262_144, "rope_scaling": "none"})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 96 GiB without a GPU, whose speeds are known; returns the 35B's path."""
    folders(tmp_path, monkeypatch)
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(96 * GIB, 90 * GIB))
    monkeypatch.setattr(speeds, "ram_rate", lambda threads: 50e9)
    monkeypatch.setattr(speeds, "disk_rate", lambda path: 3e9)
    return write_hollow(tmp_path / "35b.gguf")


@pytest.mark.parametrize("gpu", [["--gpu-memory", "6GiB"], []])
def test_the_command_plan(here: Path, capsys: pytest.CaptureFixture[str], gpu: list[str]) -> None:
    command = ["plan", str(here), "-c", "1048576", "--swap-space", "32GiB", *gpu]
    assert main.run([*command, "--rope-scaling", "yarn", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["max_seq_len"] == 1 << 20
    assert found["kv"]["hot"] + found["kv"]["warm"] >= 1 << 20
    assert main.run([*command, "--rope-scaling", "yarn"]) == 0
    assert "positions are scaled by 4 (YaRN)" in capsys.readouterr().err
    assert main.run(command) == 2
    assert "--rope-scaling yarn goes beyond that" in capsys.readouterr().err
    assert main.run([*command, "--rope-scaling", "yarn", "-c", "8388609"]) == 2
    assert "YaRN scales by 32 at most" in capsys.readouterr().err


# -- a real model --------------------------------------------------------------------------------------------------

THREADS = 2
FREE = SamplingParams(temperature=0.0, ignore_eos=True)
Steps = list[tuple[int, bytes]]


def opened(path: Path, **settings: Any) -> Service:
    return load_service(path, EngineConfig(gpu_layers=0, threads=THREADS, **settings))


def steps_of(monkeypatch: pytest.MonkeyPatch, path: Path, prompt: Sequence[int], n: int, **settings: Any) -> Steps:
    """Tokens of a greedy answer, and the raw logits that each was taken from."""
    steps: Steps = []
    sample = NativeRunner._sample

    def kept(self: NativeRunner, slot: Any, index: int) -> Any:
        logits = self._context.logits(index).tobytes()
        sampled: Any = sample(self, slot, index)
        steps.append((sampled.token, logits))
        return sampled

    with monkeypatch.context() as patched, opened(path, **settings) as service:
        patched.setattr(NativeRunner, "_sample", kept)
        for _ in service.submit(GenerationRequest(prompt=tuple(prompt), sampling=FREE, max_tokens=n)):
            pass
    return steps


def by_hand(library: Library, path: Path, prompt: Sequence[int], answer: Sequence[int], **params: Any) -> list[bytes]:
    """Raw logits of the same steps, from a context of llama.cpp's with these parameters."""
    model_params, context_params = (
        getattr(library.llama, f"llama_{of}_default_params")() for of in ("model", "context")
    )
    model_params.n_gpu_layers = 0
    shared = {"n_seq_max": 1, "n_outputs_max": 1, "n_batch": 512, "n_ubatch": 512, "n_threads": THREADS}
    for name, value in (shared | {"n_threads_batch": THREADS, "swa_full": False} | params).items():
        setattr(context_params, name, value)
    with (
        closing(NativeModel(library, path, model_params)) as model,
        closing(NativeContext(model, context_params)) as context,
    ):
        stock = Stock(context)
        return [stock.feed(0, list(prompt)), *(stock.feed(0, [token]) for token in answer[:-1])]


def trained_for(n_tokens: int, source: Path, target: Path) -> Path:
    """The same model, said to have been trained for so many tokens: what is longer then is read in no time."""
    facts = read_facts(source)
    key = f"{facts.architecture}.context_length"
    before, data = u32(key, facts.context or 0), source.read_bytes()
    assert data.count(before) == 1
    target.write_bytes(data.replace(before, u32(key, n_tokens)))
    return target


@pytest.mark.real
def test_logits_are_those_of_llama_cpps_parameters(
    library: Library, smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = tokens_of(1, 60)
    steps = steps_of(monkeypatch, smollm2, prompt, 6, max_seq_len=16_384, rope_scaling="yarn")
    tokens = [token for token, _ in steps]
    rope = {"rope_scaling_type": 2, "rope_freq_scale": 0.5, "yarn_orig_ctx": 8192}
    assert [logits for _, logits in steps] == by_hand(library, smollm2, prompt, tokens, n_ctx=16_384, **rope)
    assert steps[0][1] != by_hand(library, smollm2, prompt, tokens, n_ctx=16_384)[0]


@pytest.mark.real
@pytest.mark.parametrize(("name", "paging"), [("smollm2", "on"), ("tiny_hybrid", "off")])
def test_and_where_the_prompt_is_longer_than_the_training(
    library: Library, name: str, paging: str, tmp_path: Path, request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hybrid has the 35B's rotations. Without pages, as for snapshots it reads in other batches with them."""
    path = trained_for(512, request.getfixturevalue(name), tmp_path / "short.gguf")
    prompt = tokens_of(2, 700)
    steps = steps_of(monkeypatch, path, prompt, 4, max_seq_len=2048, rope_scaling="yarn", paging=paging)
    rope = {"rope_scaling_type": 2, "rope_freq_scale": 0.25, "yarn_orig_ctx": 512}
    expected = by_hand(library, path, prompt, [token for token, _ in steps], n_ctx=2048, **rope)
    assert [logits for _, logits in steps] == expected


@pytest.mark.real
def test_up_to_the_trained_length_nothing_changes(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = tokens_of(3, 60)
    plain, asked = (
        steps_of(monkeypatch, smollm2, prompt, 4, max_seq_len=8192, rope_scaling=scaling)
        for scaling in ("none", "yarn")
    )
    assert plain == asked


@pytest.mark.real
def test_greedy_text_is_that_of_llama_cpps_own_program(library: Library, smollm2: Path) -> None:
    program = find_runtime().bin / "llama-completion"
    if not program.is_file():
        pytest.skip("this runtime has no llama-completion")
    prompt, n = "The capital of France is", 24
    command = [
        str(program), "-m", str(smollm2), "-no-cnv", "--no-display-prompt", "--no-warmup", "--temp", "0", "-n", str(n),
        "-t", str(THREADS), "-ngl", "0", "-fa", "on", "--ignore-eos", "-p", prompt, "-c", "16384",
    ]  # fmt: skip
    scaled = ["--rope-scaling", "yarn", "--rope-scale", "2", "--yarn-orig-ctx", "8192"]
    theirs = subprocess.run([*command, *scaled], capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout
    with opened(smollm2, max_seq_len=16_384, rope_scaling="yarn") as service:
        assert service.limits.max_seq_len == 16_384
        tokens = service.vocab.tokenize(prompt, add_special=True, parse_special=True)
        request = GenerationRequest(prompt=tuple(tokens), sampling=FREE, max_tokens=n)
        ours = "".join(event.text for event in service.submit(request) if isinstance(event, TextDelta))
    assert ours and ours == theirs.decode().removesuffix("\n\n")


@pytest.mark.real
def test_a_model_without_rotations_cannot_be_scaled(
    library: Library, smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bloom.gguf"
    path.write_bytes(smollm2.read_bytes().replace(b"llama", b"bloom"))
    params = library.llama.llama_model_default_params()
    params.vocab_only = True
    for of, rotates in ((smollm2, True), (path, False)):
        with closing(NativeModel(library, of, params)) as model:
            assert model.has_rope is rotates
    monkeypatch.setattr(NativeModel, "has_rope", False)
    with pytest.raises(UsageError, match="no positions that could be scaled"):
        opened(smollm2, max_seq_len=16_384, rope_scaling="yarn")
    opened(smollm2, max_seq_len=8192, rope_scaling="yarn").close()


@pytest.mark.real
def test_a_length_that_memory_has_no_room_for_is_refused(library: object, smollm2: Path) -> None:
    """Else answers would be worse for tokens that nobody can have."""
    config = EngineConfig(max_seq_len=65_536, rope_scaling="yarn", gpu_memory=100 << 20, gpu_layers=0, spill="off")
    with pytest.raises(NotEnoughMemoryError, match="tokens that positions are scaled for") as e:
        load_service(smollm2, config)
    assert "without --rope-scaling" in e.value.hint and "raise gpu_memory" in e.value.hint
