"""What a hub has: the files of a repository with their sizes and checksums, and what a search finds.

All of it is asked through huggingface_hub, whose token it is too: HF_TOKEN, or the one that `hf auth login` stored. The
hub is the Hugging Face one, or the one that HF_ENDPOINT names. HF_HUB_OFFLINE=1 forbids every request.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from pagedrun import __version__, units
from pagedrun.errors import DownloadError, UsageError
from pagedrun.hub import http, reference
from pagedrun.hub.http import Say

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

T = TypeVar("T")

_TRUE = ("1", "ON", "YES", "TRUE")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file of a source. path: inside it. size in bytes and sha256: None where the source does not say.

    version: what the server calls this content, where there is no checksum.
    """

    path: str
    size: int | None
    sha256: str | None
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository at one commit. unusable: paths in it that nothing is fetched from, because of their names."""

    name: str
    commit: str
    files: tuple[RemoteFile, ...]
    license: str | None
    unusable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A repository that a search found."""

    name: str
    downloads: int


def endpoint() -> str:
    """The hub's address. Raises DownloadError for an HF_ENDPOINT that is none."""
    value = os.environ.get("HF_ENDPOINT", "").strip() or "https://huggingface.co"
    parts = reference.split(value)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        hint = "for example https://huggingface.co, which it is without that variable"
        raise DownloadError(f"HF_ENDPOINT is not the address of a hub: {value}", hint=hint)
    return value.rstrip("/")


def settings() -> ModuleType:
    """huggingface_hub's constants. It reads its variables when it is imported, so that this has to come first.

    Raises DownloadError for variables that it cannot use.
    """
    try:
        from huggingface_hub import constants
    except ValueError as e:
        endpoint()
        hint = "see those of your variables whose names begin with HF_"
        raise DownloadError(f"Hugging Face's library cannot use its settings: {e}", hint=hint) from e
    return constants


def repository(repo: str, revision: str | None = None, say: Say = http.silent) -> Repository:
    """The files of a model's repository. Raises DownloadError for every way of not getting them; UsageError."""
    _require_valid(repo)

    def request() -> Repository:
        from huggingface_hub import HfApi

        api = HfApi(endpoint=endpoint(), token=False, headers=headers())
        info = api.model_info(repo, revision=revision, files_metadata=True, timeout=http.patience.answer_s)
        if not info.sha:
            raise ValueError("no commit")
        siblings = info.siblings or []
        return Repository(
            name=repo,
            commit=info.sha,
            files=tuple(_file(s) for s in siblings if _is_usable(s.rfilename)),
            license=next((tag[8:] for tag in info.tags or [] if tag.startswith("license:")), None),
            unusable=tuple(s.rfilename for s in siblings if not _is_usable(s.rfilename)),
        )

    return _asked(request, repo, revision, say)


def search(words: list[str], limit: int, say: Say = http.silent) -> list[Found]:
    """Repositories with GGUF files whose names have all the words, the most fetched first. Raises DownloadError.

    By the library's session, not by its `list_models`: that has no timeout, and repeats a request for half a minute
    (or for as long as a server asks) without a word.
    """
    wanted = {"search": " ".join(words), "filter": "gguf", "sort": "downloads", "limit": str(limit)}

    def request() -> list[Found]:
        from huggingface_hub import get_session

        url, timeout = f"{endpoint()}/api/models", http.patience.answer_s
        response = get_session().get(url, params=wanted, headers=headers(), timeout=timeout)
        response.raise_for_status()
        return [Found(name=str(m["id"]), downloads=int(m.get("downloads") or 0)) for m in response.json()]

    return sorted(_asked(request, None, None, say), key=lambda m: -m.downloads)[:limit]


def file_url(repo: str, revision: str, path: str) -> str:
    """The address of one file; the hub answers with a redirect to where its bytes are. Raises UsageError."""
    from huggingface_hub import hf_hub_url

    _require_valid(repo)
    return hf_hub_url(repo, path, revision=revision, endpoint=endpoint())


def forbidden_by() -> str | None:
    """The variable that forbids to ask the hub; None where it may be asked."""
    variables = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return next((name for name in variables if os.environ.get(name, "").upper() in _TRUE), None)


def headers() -> dict[str, str]:
    """What every request to the hub carries: the program's name, and the token if there is one.

    Raises DownloadError where HF_HUB_OFFLINE forbids requests, and for what is no token.
    """
    if variable := forbidden_by():
        hint = f"unset {variable} to use the network"
        raise DownloadError(f"the hub must not be asked: {variable} is set", hint=hint)
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    settings()
    from huggingface_hub.utils import build_hf_headers

    found: dict[str, str] = build_hf_headers(library_name="pagedrun", library_version=__version__)
    token = found.get("authorization", "").removeprefix("Bearer ")
    if not token.isascii() or not token.isprintable() or " " in token:
        # Said here: the client would print it in its own error.
        raise DownloadError("the Hugging Face token holds characters that no token has", hint="see HF_TOKEN")
    return found


def refused(status: int, answer: Mapping[str, str], repo: str | None, what: str | None = None) -> DownloadError:
    """What the hub's refusal means. `what`: the revision or file that was asked for."""
    name, said = http.host(endpoint()), answer.get("x-error-message", "")
    has_token = "authorization" in headers()
    if repo and (by_code := _refused_by_code(answer.get("x-error-code", ""), repo, what, has_token)):
        return by_code
    if status == 401 and has_token and "invalid" in said.lower():
        message, hint = f"{name} does not accept the token", "make a new one and set HF_TOKEN, or use none"
    elif status in (401, 404) and repo:
        message = f"{name} has no repository {repo}, or it is private"
        hint = f"look for it: pagedrun search {repo.partition('/')[2]}"
        hint += "" if has_token else "; a private one needs HF_TOKEN"
    elif status == 403:
        message, hint = f"{name} does not allow it{f': {said}' if said else ''}", "see HF_TOKEN"
    elif status == 429:
        wait_s = http.retry_after(answer)
        message = f"{name} is asked too often from here"
        hint = f"try again {f'in {units.duration(wait_s)}' if wait_s else 'in a few minutes'}"
        hint += "" if has_token else "; with HF_TOKEN more is allowed"
    elif status >= 500:
        message, hint = f"{name} has a problem ({status})", "try again later"
    else:
        message, hint = f"{name} answered {status}{f': {said}' if said else ''}", "is HF_ENDPOINT right?"
    return DownloadError(message, hint=hint)


def _refused_by_code(code: str, repo: str, what: str | None, has_token: bool) -> DownloadError | None:
    if code == "GatedRepo":
        page = f"accept its licence on {endpoint()}/{repo}"
        hint = f"{page} with the account of the token" if has_token else f"{page}, then set HF_TOKEN"
        return DownloadError(f"{repo} is gated: its licence has to be accepted first", hint=hint)
    if code == "RevisionNotFound":
        return DownloadError(f"{repo} has no revision {what or 'main'}", hint="leave @REVISION out to get the newest")
    if code == "EntryNotFound" and what:
        return DownloadError(f"{repo} has no file {what}", hint=f"without a file's name: pagedrun pull hf:{repo}")
    return None


def _asked(request: Callable[[], T], repo: str | None, revision: str | None, say: Say) -> T:
    """What a request by huggingface_hub returns; repeated here, where that may help, and nowhere else."""
    headers()  # before any client is made
    address = endpoint()
    from huggingface_hub import get_session

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it would print a hub's warnings as they come
    with http.environment():
        get_session()
    try:
        return http.ask(request, address, lambda status, answer: refused(status, answer, repo, revision), say)
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        name = http.host(address)
        raise DownloadError(f"{name} does not answer as a hub does", hint="is HF_ENDPOINT right?") from e


def _require_valid(repo: str) -> None:
    settings()
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as e:
        raise UsageError(f"hf:{repo} is no repository", hint="for example hf:unsloth/Qwen3.5-4B-GGUF") from e


def _is_usable(path: str) -> bool:
    """Whether a file may have that path here: it drives no terminal, is not hidden, and stays inside its folder."""
    return path.isprintable() and not any(part == "" or part.startswith(".") for part in path.split("/"))


def _file(sibling: RepoSibling) -> RemoteFile:
    lfs = sibling.lfs
    size = lfs.size if lfs else sibling.size
    sha256 = lfs.sha256.lower() if lfs and len(lfs.sha256) == 64 else None
    return RemoteFile(
        path=sibling.rfilename,
        size=size if size and size > 0 else None,
        sha256=sha256,
        version=f'"{sibling.blob_id}"' if sibling.blob_id and not sha256 else None,  # its entity tag
    )
