"""Which files of a repository to fetch for what the user typed.

hf:OWNER/REPO           Q4_K_M; where there is none the nearest, and a remark that says so
hf:OWNER/REPO:QUANT     that quantisation or an error with those that are there
hf:OWNER/REPO/FILE      that file

A split model is one choice of several files. Image parts (mmproj) and importance matrices are no models.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import PurePosixPath

from pagedrun import units
from pagedrun.errors import DownloadError, UsageError
from pagedrun.hub import quants
from pagedrun.hub.reference import HubReference
from pagedrun.hub.remote import RemoteFile, Repository

# Of several image parts: exact enough, and read by every version of llama.cpp.
_PROJECTORS = ("F16", "BF16", "Q8_0", "F32")
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Choice:
    """The parts of one model, in order. remark: what about it was not asked for; "" where nothing."""

    files: tuple[RemoteFile, ...]
    remark: str = ""

    @property
    def first(self) -> str:
        """The path of the first part."""
        return self.files[0].path

    @property
    def quant(self) -> str | None:
        """Its quantisation, by the name of the file or of the folder it is in."""
        return quants.quant_of(self.first)

    @property
    def size(self) -> int | None:
        """Bytes of all parts; None when the hub does not say."""
        sizes = [f.size for f in self.files]
        return sum(s for s in sizes if s) if all(sizes) else None


def choose(repository: Repository, reference: HubReference) -> Choice:
    """The model that `reference` means. Raises DownloadError that lists what is there; UsageError for no GGUF."""
    if reference.file is not None:
        return _by_file(repository, reference.file)
    models = _models(repository.files)
    if not models:
        raise _no_model(repository)
    if reference.quant is not None:
        matching = _of_quant(models, reference.quant)
        if not matching:
            raise _absent(repository, models, reference.quant)
        return _only(matching, repository)
    there = {quant for m in models if (quant := m.quant)}
    if not there:
        return _only(models, repository)
    nearest = min(there, key=lambda q: (quants.distance(q.removeprefix("UD-")), q.startswith("UD-")))
    chosen = _only([m for m in models if m.quant == nearest], repository)
    lacking = _of_quant(_incomplete(repository.files), quants.PREFERRED)
    return Choice(chosen.files, _remark(nearest, is_only=len(there) == 1, is_incomplete=bool(lacking)))


def original(repository: Repository) -> Choice | None:
    """The model that has not been quantised, to be quantised. Raises DownloadError where several are one."""
    models = _models(repository.files)
    found = (of_quant for quant in quants.ORIGINALS if (of_quant := _of_quant(models, quant)))
    return _only(first, repository) if (first := next(found, None)) else None


def no_original(repository: Repository) -> DownloadError | UsageError:
    """What to say of a repository that has nothing to quantise."""
    models = _models(repository.files)
    if not models:
        return _no_model(repository)
    return UsageError(
        f"{repository.name} holds neither safetensors nor a model that is known to be F16, BF16 or F32",
        hint=_list(repository, [model.first for model in models], "name one of its files"),
    )


def projector(repository: Repository) -> RemoteFile:
    """The image part that goes with the repository's models. Raises DownloadError when there is none."""
    found = [f for f in repository.files if quants.is_projector(f.path) and f.path.lower().endswith(".gguf")]
    if not found:
        raise DownloadError(f"{repository.name} has no image part (mmproj)", hint="leave --projector out")

    def rank(file: RemoteFile) -> tuple[int, str]:
        quant = quants.quant_of(PurePosixPath(file.path).name) or ""
        return (_PROJECTORS.index(quant) if quant in _PROJECTORS else len(_PROJECTORS), file.path)

    return min(found, key=rank)


def _models(files: Iterable[RemoteFile]) -> list[Choice]:
    """The models among the files, whole ones only; the parts of a split one together."""
    return [Choice(tuple(whole)) for group in _groups(files) if (whole := _in_order(group))]


def _incomplete(files: Iterable[RemoteFile]) -> list[Choice]:
    """The split models that lack parts."""
    return [Choice(tuple(group)) for group in _groups(files) if not _in_order(group)]


def _groups(files: Iterable[RemoteFile]) -> list[list[RemoteFile]]:
    """The files of each model."""
    groups: dict[str, list[RemoteFile]] = {}
    for file in files:
        name = PurePosixPath(file.path).name
        if name.lower().endswith(".gguf") and not quants.is_projector(name) and "imatrix" not in name.lower():
            part = quants.part_of(name)
            model = f"{file.path[: -len('00001-of-00001.gguf')]}{part[1]}" if part else file.path
            groups.setdefault(model, []).append(file)
    return list(groups.values())


def _in_order(files: list[RemoteFile]) -> list[RemoteFile]:
    """All parts in order; nothing when some are not there."""
    parts = {quants.part_of(PurePosixPath(f.path).name) or (1, 1): f for f in files}
    total = next(iter(parts))[1]
    return [parts[n, total] for n in range(1, total + 1) if (n, total) in parts] if len(parts) == total else []


def _of_quant(models: list[Choice], wanted: str) -> list[Choice]:
    """Those of that quantisation; one with a prefix like UD- only where there is none without."""
    exact = [m for m in models if m.quant == wanted.upper()]
    return exact or [m for m in models if m.quant and m.quant.removeprefix("UD-") == wanted.upper()]


def _by_file(repository: Repository, path: str) -> Choice:
    if not path.lower().endswith(".gguf"):
        raise UsageError(f"{path} is not a GGUF file", hint="models are files with names that end in .gguf")
    files = {f.path: f for f in repository.files}
    named = [p for p in files if PurePosixPath(p).name == path]
    path = named[0] if path not in files and len(named) == 1 else path
    if path in repository.unusable:
        raise _unusable(repository, path)
    if path not in files:
        ggufs = [p for p in files if p.lower().endswith(".gguf")]
        close = get_close_matches(path, ggufs, n=_SHOWN, cutoff=0.3) or ggufs
        raise DownloadError(f"{repository.name} has no file {path}", hint=_list(repository, close, "it has"))
    if not quants.part_of(PurePosixPath(path).name):
        return Choice((files[path],))
    whole = next((m for m in _models(repository.files) if files[path] in m.files), None)
    if whole is None:
        raise DownloadError(f"{repository.name} does not have all parts of {path}", hint="choose another file")
    return whole


def _only(models: list[Choice], repository: Repository) -> Choice:
    """The one model of the list. Raises DownloadError for several."""
    if len(models) > 1:
        hint = _list(repository, [m.first for m in models], "name one of them")
        raise DownloadError(f"{repository.name} holds {len(models)} models that this could mean", hint=hint)
    return models[0]


def _absent(repository: Repository, models: list[Choice], wanted: str) -> DownloadError:
    def line(model: Choice) -> str:
        size = f" ({units.size(model.size)})" if model.size else ""
        return f"{model.quant or model.first}{size}"

    there = sorted(models, key=lambda m: (m.size or 0, m.first))
    hint = f"there is: {', '.join(dict.fromkeys(map(line, there)))}"
    lacking = _of_quant(_incomplete(repository.files), wanted)
    if lacking:
        return DownloadError(f"{repository.name} lacks parts of its {wanted.upper()}: {_parts(lacking[0])}", hint=hint)
    return DownloadError(f"{repository.name} has no {wanted.upper()}", hint=hint)


def _no_model(repository: Repository) -> DownloadError:
    name = repository.name
    look = f"pagedrun search {name.partition('/')[2]}"
    ggufs = [f.path for f in repository.files if f.path.lower().endswith(".gguf")]
    if any(f.path.endswith(".safetensors") for f in repository.files):
        hint = f"make one of it: pagedrun quantize hf:{name}; or look for one that was made: {look}"
        return DownloadError(f"{name} holds safetensors and no GGUF model", hint=hint)
    if lacking := _incomplete(repository.files):
        return DownloadError(f"{name} lacks parts of its model: {_parts(lacking[0])}", hint=f"look for another: {look}")
    if ggufs:
        others = f"only what goes with one: {', '.join(ggufs[:_SHOWN])}"
        return DownloadError(f"{name} holds no model, {others}", hint=f"look for one: {look}")
    if hidden := [path for path in repository.unusable if path.lower().endswith(".gguf")]:
        return _unusable(repository, hidden[0])
    return DownloadError(f"{name} holds no GGUF file", hint=f"look for one: {look}")


def _unusable(repository: Repository, path: str) -> DownloadError:
    return DownloadError(
        f"{repository.name} calls its file {path!r}, and no file may be called so here",
        hint="a name that begins with a dot is hidden, and control characters drive the terminal: "
        f"look for another repository: pagedrun search {repository.name.partition('/')[2]}",
    )


def _parts(model: Choice) -> str:
    part = quants.part_of(PurePosixPath(model.first).name)
    return f"{len(model.files)} of {part[1] if part else 1} are there"


def _remark(quant: str, *, is_only: bool, is_incomplete: bool) -> str:
    if quant.removeprefix("UD-") == quants.PREFERRED:
        return ""
    why = f"its {quants.PREFERRED} lacks parts" if is_incomplete else f"it has no {quants.PREFERRED}"
    return f"{why}; {quant} is {'all there is' if is_only else 'the nearest'}"


def _list(repository: Repository, paths: Iterable[str], what: str) -> str:
    lines = [f"hf:{repository.name}/{path}" for path in paths]
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "\n  ".join([f"{what}:", *lines[:_SHOWN], *more])
