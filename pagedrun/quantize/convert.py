"""safetensors -> GGUF, by llama.cpp's converter in the environment made for it.

The converter sees a folder with links to the data alone: weights as safetensors, the configuration, the tokenizer. So
it can neither read pickle files nor run a model's own Python code, which for some models it would do unasked.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from pagedrun.errors import ModelError, ModelFileError, PagedrunError
from pagedrun.hub import remote
from pagedrun.hub.pull import Pullable
from pagedrun.hub.reference import HubReference
from pagedrun.hub.remote import Repository
from pagedrun.paths import models_dir
from pagedrun.quantize import program
from pagedrun.quantize.source import RepositorySource

_DATA = (".safetensors", ".json", ".jsonl", ".txt", ".model", ".tiktoken", ".jinja", ".md")
_WRITING = re.compile(r"Writing: +(\d+)%")

# What the converter's last line says -> what we say. The first that matches is used.
_FAILURES: tuple[tuple[str, str, str], ...] = (
    (
        r"Model (\S+) is not supported",
        "its architecture {0} is not known to the converter of this llama.cpp",
        "newer models need a newer pagedrun; is there a GGUF of it? pagedrun search",
    ),
    (
        r"pre-tokenizer was not recognized",
        "its tokenizer is not known to the converter of this llama.cpp",
        "newer models need a newer pagedrun; is there a GGUF of it? pagedrun search",
    ),
    (
        r"trust_remote_code|custom code|requires you to execute",
        "its tokenizer is a program of its own, which pagedrun does not run",
        "get the model as GGUF: pagedrun search",
    ),
    (
        r"(?i)tokenizer|vocab",
        "its tokenizer cannot be used: {line}",
        "are all files of the tokenizer there? Fetch the whole repository again",
    ),
    (
        r"ModuleNotFoundError: No module named '([^']*)'|ImportError: .*?(\w+)$",
        "the converter needs the package {0} for it",
        "add it with: --with {0}",
    ),
    (r"No space left on device", "the disk is full", "free some space, or write elsewhere with -o"),
    (r"SafetensorError|incomplete metadata|HeaderTooLarge|InvalidHeader", "a file of its weights is damaged", ""),
    (r"MemoryError|Cannot allocate memory", "there is not enough memory", "close other programs"),
)


def convert(
    environment: Path, source: Path, target: Path, out_type: str, on_percent: Callable[[int, int], None]
) -> None:
    """Write the model in the folder `source` as GGUF to `target`.

    out_type: "f32", "f16", "bf16", or "auto" for the 16-bit type that keeps most of the source. on_percent gets (done,
    100). Raises ModelFileError, ModelError.
    """
    script = environment / "llama.cpp" / "convert_hf_to_gguf.py"
    with tempfile.TemporaryDirectory(prefix="pagedrun-") as scratch:
        # The folder's name becomes the model's, where nothing else says it.
        staged = Path(scratch) / source.name
        _stage(source, staged)
        python = environment / "bin" / "python"
        command = [str(python), str(script), str(staged), "--outfile", str(target), "--outtype", out_type]
        status, tail = program.run(command, cwd=staged, env=_environment(), on_piece=_watch(on_percent))
    if status != 0 or not target.stat().st_size:
        raise _failure(source, status, tail)


def _stage(source: Path, staged: Path) -> None:
    staged.mkdir()
    for file in sorted(source.iterdir()):
        if file.suffix in _DATA and file.is_file():
            (staged / file.name).symlink_to(file.resolve())


def _environment() -> dict[str, str]:
    """Nothing of our own environment's packages, and no network: all it needs is in the folder."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return env | {
        "PYTHONNOUSERSITE": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }


def _watch(on_percent: Callable[[int, int], None]) -> Callable[[str], None]:
    def on_piece(piece: str) -> None:
        if match := _WRITING.search(piece):
            on_percent(int(match[1]), 100)

    return on_piece


def _failure(source: Path, status: int, tail: str) -> PagedrunError:
    lines = [line.strip() for line in tail.splitlines() if line.strip() and not _WRITING.search(line)]
    told = [line for line in lines if re.match(r"(ERROR:|[\w.]*(?:Error|Exception|Interrupt)\b)", line)]
    line = (told or lines or [f"it ended with status {status}"])[-1].removeprefix("ERROR:hf-to-gguf:")
    for pattern, text, hint in _FAILURES:
        if match := re.search(pattern, line):
            first = next((group for group in match.groups() if group), "")
            said = text.format(first, line=line)
            return ModelFileError(f"{source.name} cannot be converted: {said}", hint=hint.format(first))
    reason = f"the converter was ended by signal {-status}" if status < 0 else line
    return ModelError(f"{source.name} cannot be converted: {reason}", hint="is there a GGUF of it? pagedrun search")


# --- from the hub ------------------------------------------------------------------------------------------------


def pullable(source: RepositorySource) -> Pullable | None:
    """What of the repository the converter needs, to be fetched; None when it holds no safetensors.

    Raises DownloadError.
    """
    return _pullable(source.reference, remote.repository(source.reference.repo, source.reference.revision))


def _pullable(reference: HubReference, repository: Repository) -> Pullable | None:
    files = [file for file in repository.files if "/" not in file.path and Path(file.path).suffix in _DATA]
    weights = [file for file in files if file.path.endswith(".safetensors")]
    if not weights:
        return None
    # A consolidated copy beside the parts would double it.
    if any(file.path.startswith("model") for file in weights):
        files = [file for file in files if not file.path.startswith("consolidated")]
    return Pullable(
        name=str(reference),
        title=reference.repo.partition("/")[2],
        source=f"hf:{reference.repo}@{repository.commit}",
        files=tuple(files),
        folder=models_dir() / reference.repo,
        license=repository.license,
    )
