"""What a hub has: the files of a repository with their sizes and checksums, and what a search finds.

The hub is the Hugging Face one, or the one that HF_ENDPOINT names. The token is huggingface_hub's: HF_TOKEN, or the
one that `hf auth login` stored. HF_HUB_OFFLINE=1 forbids every request.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pagedrun import units
from pagedrun.errors import DownloadError
from pagedrun.hub import http

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
    """A repository at one commit."""

    name: str
    commit: str
    files: tuple[RemoteFile, ...]
    license: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A repository that a search found."""

    name: str
    downloads: int


def endpoint() -> str:
    """The hub's address."""
    return os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or "https://huggingface.co"


def repository(repo: str, revision: str | None = None) -> Repository:
    """The files of a model's repository. Raises DownloadError for every way of not getting them."""
    at = f"/revision/{quote(revision, safe='')}" if revision else ""
    answer = _asked(f"/api/models/{repo}{at}", {"blobs": "true"}, lambda s, h: refused(s, h, repo, revision))
    try:
        tags = [str(tag) for tag in answer.get("tags") or []]
        return Repository(
            name=repo,
            commit=str(answer["sha"]),
            # A name that could drive a terminal, or that no file should have, is nobody's model.
            files=tuple(_file(s) for s in answer.get("siblings") or [] if str(s["rfilename"]).isprintable()),
            license=next((tag[8:] for tag in tags if tag.startswith("license:")), None),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise _nonsense() from e


def search(words: list[str], limit: int) -> list[Found]:
    """Repositories with GGUF files whose names have all the words, the most fetched first. Raises DownloadError."""
    wanted = {"search": " ".join(words), "filter": "gguf", "sort": "downloads", "direction": "-1", "limit": str(limit)}
    answer = _asked("/api/models", wanted, lambda s, h: refused(s, h, None))
    try:
        found = [Found(name=str(m["id"]), downloads=int(m.get("downloads") or 0)) for m in answer]
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise _nonsense() from e
    return sorted(found, key=lambda m: -m.downloads)[:limit]


def file_url(repo: str, revision: str, path: str) -> str:
    """The address of one file; the hub answers with a redirect to where its bytes are."""
    return f"{endpoint()}/{repo}/resolve/{quote(revision, safe='')}/{quote(path)}"


def require_online() -> None:
    """Raise DownloadError where HF_HUB_OFFLINE forbids the network."""
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(variable, "").upper() in _TRUE:
            raise DownloadError(
                f"the hub must not be asked: {variable} is set", hint=f"unset {variable} to use the network"
            )


def authorization() -> dict[str, str]:
    """The header that says who is asking; empty without a token. Raises DownloadError for what is no token."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in _TRUE:
        return {}
    from huggingface_hub import get_token

    token = get_token()
    if not token:
        return {}
    if not token.isascii() or not token.isprintable() or " " in token:
        # Said here: the client would print it in its own error.
        raise DownloadError("the Hugging Face token holds characters that no token has", hint="see HF_TOKEN")
    return {"Authorization": f"Bearer {token}"}


def refused(status: int, headers: Mapping[str, str], repo: str | None, what: str | None = None) -> DownloadError:
    """What the hub's refusal means. `what`: the revision or file that was asked for."""
    name, said = http.host(endpoint()), headers.get("x-error-message", "")
    has_token = bool(authorization())
    if repo and (by_code := _refused_by_code(headers.get("x-error-code", ""), repo, what, has_token)):
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
        wait_s = http.retry_after(headers)
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


def _asked(path: str, wanted: dict[str, str], refusal: http.Refusal) -> Any:
    """The JSON that the hub answers."""
    require_online()
    try:
        return http.get(endpoint() + path, refusal, params=wanted, headers=authorization()).json()
    except ValueError as e:
        raise _nonsense() from e


def _file(sibling: Mapping[str, Any]) -> RemoteFile:
    lfs = sibling.get("lfs") or {}
    size = lfs.get("size", sibling.get("size"))
    sha256 = str(lfs.get("sha256") or lfs.get("oid") or "").lower()
    is_hash = len(sha256) == 64
    blob = sibling.get("blobId")
    return RemoteFile(
        path=str(sibling["rfilename"]),
        size=size if isinstance(size, int) and size > 0 else None,
        sha256=sha256 if is_hash else None,
        version=f'"{blob}"' if blob and not is_hash else None,  # its entity tag
    )


def _nonsense() -> DownloadError:
    return DownloadError(f"{http.host(endpoint())} does not answer as a hub does", hint="is HF_ENDPOINT right?")
