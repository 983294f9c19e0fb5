"""What the user typed for a model, taken apart. No file and no network is looked at, but for a bare file name.

qwen3.6-35b                                    NameReference
./m.gguf  ~/m.gguf  m.gguf                     PathReference
hf:unsloth/Qwen3.5-4B-GGUF                     HubReference(repo)
hf:unsloth/Qwen3.5-4B-GGUF:Q8_0                ... quant
hf:unsloth/Qwen3.5-4B-GGUF/sub/m-Q8_0.gguf     ... file
hf:unsloth/Qwen3.5-4B-GGUF@REVISION[:...]      ... revision: a branch, a tag or a commit, a "/" in it as %2F
https://huggingface.co/O/R/resolve/main/f.gguf the same as hf:O/R@main/f.gguf
https://example.org/m.gguf                     UrlReference
ollama:llama3.1:8b                             OllamaReference
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urlsplit

from pagedrun.errors import UsageError

_HF = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[\w.%-]+))?(?::(?P<quant>[\w.-]+)|/(?P<file>[^:]+))?")
_OLLAMA = re.compile(r"ollama:(?P<name>[\w./-]+?)(?::(?P<tag>[\w.-]+))?")
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://|(?P<prefix>hf|ollama):", re.IGNORECASE)
_CHECKSUM = re.compile(r"sha256=([0-9a-fA-F]{64})")
_HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")


@dataclass(frozen=True, slots=True)
class NameReference:
    """A name of the registry, or what may be one."""

    name: str


@dataclass(frozen=True, slots=True)
class PathReference:
    """A file, as it was typed."""

    path: Path


@dataclass(frozen=True, slots=True)
class HubReference:
    """A repository on a Hugging Face hub; of its files the one named, or those of that quantisation."""

    repo: str
    revision: str | None = None
    quant: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        what = f":{self.quant}" if self.quant else f"/{self.file}" if self.file else ""
        revision = f"@{quote(self.revision, safe='')}" if self.revision else ""
        return f"hf:{self.repo}{revision}{what}"


@dataclass(frozen=True, slots=True)
class UrlReference:
    """A file on any other server. Its address may end in #sha256=HEX."""

    url: str

    @property
    def address(self) -> str:
        """What to ask the server for."""
        return self.url.partition("#")[0]

    @property
    def sha256(self) -> str | None:
        """The checksum that it gives. Raises UsageError for any other end of that kind."""
        fragment = self.url.partition("#")[2]
        checksum = _CHECKSUM.fullmatch(fragment)
        if fragment and not checksum:
            raise UsageError(f"#{fragment} is not #sha256=HEX", hint="leave it out, or give all 64 digits")
        return checksum[1].lower() if checksum else None

    @property
    def file_name(self) -> str:
        """The last part of the address' path."""
        return unquote(urlsplit(self.url).path).rpartition("/")[2]

    @property
    def source(self) -> str:
        """The address without user, password, query and fragment: what is shown and remembered."""
        address = urlsplit(self.url)
        return f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path}"


@dataclass(frozen=True, slots=True)
class OllamaReference:
    """A model that Ollama has fetched."""

    name: str
    tag: str = "latest"


Reference = NameReference | PathReference | HubReference | UrlReference | OllamaReference


def parse(text: str) -> Reference:
    """What `text` refers to. Raises UsageError for what cannot be any of them."""
    if not text.strip():
        raise UsageError("the model's name is empty")
    if text.startswith("hf:"):
        return _hub(text)
    if text.startswith("ollama:"):
        match = _OLLAMA.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r} is not ollama:NAME[:TAG]", hint="for example ollama:llama3.1:8b")
        return OllamaReference(match["name"], match["tag"] or "latest")
    if text.startswith(("http://", "https://")):
        return _url(text)
    if match := _SCHEME.match(text):
        raise _other_scheme(text, match)
    if "/" in text or text.startswith("~") or text.endswith(".gguf"):
        return PathReference(Path(text))
    return NameReference(text)


def _hub(text: str) -> HubReference:
    match = _HF.fullmatch(text)
    if match is None:
        raise _no_reference(text)
    revision = unquote(match["revision"]) if match["revision"] else None
    return _checked(HubReference(match["repo"], revision, match["quant"], match["file"]), text)


def _checked(reference: HubReference, text: str) -> HubReference:
    """`reference`, unless it could lead out of a folder, or to a terminal."""
    parts = [*reference.repo.split("/"), *(reference.file.split("/") if reference.file is not None else [])]
    if not {"", ".", ".."}.isdisjoint(parts) or not str(reference).isprintable():
        raise _no_reference(text)
    return reference


def _no_reference(text: str) -> UsageError:
    return UsageError(
        f"{text!r} is not hf:OWNER/REPO[:QUANT] or hf:OWNER/REPO/FILE",
        hint="for example hf:unsloth/Qwen3.5-4B-GGUF:Q4_K_M",
    )


def _other_scheme(text: str, match: re.Match[str]) -> UsageError:
    """What it means that `text` begins like an address, and like none that is known."""
    begin = match[0].lower()
    if begin in ("hf:", "ollama:", "http://", "https://"):
        return UsageError(f"{begin} is written in small letters", hint=f"type: {begin}{text[match.end() :]}")
    if begin == "file://":
        return UsageError(f"{text!r} is the address of a file here", hint=f"type its path: {unquote(text[7:])}")
    return UsageError(f"{text!r} has an unknown beginning, {begin}", hint="known: https://, http://, hf: and ollama:")


def _url(text: str) -> Reference:
    address = split(text)
    if address is None or not address.hostname:
        raise UsageError(f"{text!r} is not a whole address", hint="for example https://example.org/model.gguf")
    endpoint = split(os.environ.get("HF_ENDPOINT", ""))
    if address.netloc in (*_HUB_HOSTS, endpoint and endpoint.netloc):
        parts = [unquote(part) for part in address.path.split("/") if part]
        # OWNER/REPO, OWNER/REPO/tree/REVISION, OWNER/REPO/{resolve,blob}/REVISION/FILE...
        if len(parts) == 2 or (len(parts) == 4 and parts[2] == "tree"):
            return _checked(HubReference(f"{parts[0]}/{parts[1]}", parts[3] if len(parts) == 4 else None), text)
        if len(parts) >= 5 and parts[2] in ("resolve", "blob"):
            return _checked(HubReference(f"{parts[0]}/{parts[1]}", parts[3], None, "/".join(parts[4:])), text)
    return UrlReference(text)


def split(address: str) -> SplitResult | None:
    """An address taken apart; None for one that makes no sense."""
    try:
        found = urlsplit(address)
        found.port  # noqa: B018 -- looks at it only when asked
    except ValueError:
        return None
    return found
