"""safetensors -> GGUF, by llama.cpp's converter in the environment made for it.

The converter sees a folder with links to the data alone: weights as safetensors, the configuration, the tokenizer. So
it can neither read pickle files nor run a model's own Python code, which for some models it would do unasked.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pagedrun.errors import ModelError, ModelFileError, PagedrunError
from pagedrun.hub import choose, http, remote
from pagedrun.hub.pullable import Pullable, resolve
from pagedrun.hub.reference import HubReference
from pagedrun.hub.remote import Repository
from pagedrun.quantize import folder, program
from pagedrun.quantize.source import fetched_folder

_WRITING = re.compile(r"Writing: +(\d+)%")

# What the converter's last line says -> what we say. The first that matches is used.
_FAILURES: tuple[tuple[str, str, str], ...] = (
    (
        r"Model (\S+) is not supported",
        "its architecture {0} is not known to the converter of this llama.cpp",
        "newer models need a newer pagedrun; is there a GGUF of it? {search}",
    ),
    (
        r"pre-tokenizer was not recognized",
        "its tokenizer is not known to the converter of this llama.cpp",
        "newer models need a newer pagedrun; is there a GGUF of it? {search}",
    ),
    (
        r"trust_remote_code|custom code|requires you to execute",
        "its tokenizer is a program of its own, which pagedrun does not run",
        "get the model as GGUF: {search}",
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
    (
        r"No such file or directory: '(?:[^']*/pagedrun-\w+/[^/']+/)?([^']+)'",
        "it lacks the file {0}",
        "fetch the whole repository again",
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
    for name in folder.data_files(source):
        (staged / name).parent.mkdir(exist_ok=True)
        (staged / name).symlink_to((source / name).resolve())


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
    search = f"pagedrun search {shlex.quote(source.name)}"
    for pattern, text, hint in _FAILURES:
        if match := re.search(pattern, line):
            first = next((group for group in match.groups() if group), "")
            said = text.format(first, line=line)
            return ModelFileError(f"{source.name} cannot be converted: {said}", hint=hint.format(first, search=search))
    reason = f"the converter was ended by signal {-status}" if status < 0 else line
    return ModelError(f"{source.name} cannot be converted: {reason}", hint=f"is there a GGUF of it? {search}")


# --- from the hub ------------------------------------------------------------------------------------------------


def pullable(reference: HubReference, say: http.Say = http.silent) -> Pullable:
    """What of a repository is to be fetched for quantising: a GGUF with 16 bits a weight, else safetensors.

    Raises DownloadError, UsageError, ModelFileError.
    """
    repository = remote.repository(reference.repo, reference.revision, say)
    if original := choose.original(repository):
        return resolve(str(replace(reference, file=original.first)), say=say)
    return _safetensors(reference, repository)


def _safetensors(reference: HubReference, repository: Repository) -> Pullable:
    names = [file.path for file in repository.files if "/" not in file.path]
    is_pickled = any(name.endswith(".bin") for name in names) and not any(name.endswith(".gguf") for name in names)
    if not is_pickled and not any(name.endswith(".safetensors") for name in names):
        raise choose.no_original(repository)
    folder.check_names(names, f"hf:{repository.name}")
    files = [file for file in repository.files if folder.is_data(file.path)]
    # A consolidated copy beside the parts would double it.
    if any(name.startswith("model") and name.endswith(".safetensors") for name in names):
        files = [file for file in files if not file.path.startswith("consolidated")]
    return Pullable(
        name=str(reference),
        title=reference.repo.partition("/")[2],
        source=f"hf:{reference.repo}@{repository.commit}",
        # Weights last: where they are complete, everything is.
        files=tuple(sorted(files, key=lambda file: file.path.endswith(".safetensors"))),
        folder=fetched_folder(reference),
        license=repository.license,
    )
