"""What the user typed for a model, taken apart. No file and no network is looked at, but for a bare file name.

qwen3.6-35b                                    NameReference
./m.gguf  ~/m.gguf  m.gguf                     PathReference
hf:unsloth/Qwen3.5-4B-GGUF                     HubReference(repo)
hf:unsloth/Qwen3.5-4B-GGUF:Q8_0                ... quant
hf:unsloth/Qwen3.5-4B-GGUF/sub/m-Q8_0.gguf     ... file
hf:unsloth/Qwen3.5-4B-GGUF@REVISION[:...]      ... revision: a branch, a tag or a commit
https://huggingface.co/O/R/resolve/main/f.gguf the same as hf:O/R@main/f.gguf
https://example.org/m.gguf                     UrlReference
ollama:llama3.1:8b                             OllamaReference
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pagedrun.errors import UsageError

_HF = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[\w.-]+))?(?::(?P<quant>[\w.-]+)|/(?P<file>[^\s:]+))?")
_OLLAMA = re.compile(r"ollama:(?P<name>[\w./-]+?)(?::(?P<tag>[\w.-]+))?")
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
        return f"hf:{self.repo}{f'@{self.revision}' if self.revision else ''}{what}"


@dataclass(frozen=True, slots=True)
class UrlReference:
    """A file on any other server."""

    url: str

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
    if "/" in text or text.startswith("~") or text.endswith(".gguf"):
        return PathReference(Path(text))
    return NameReference(text)


def _hub(text: str) -> HubReference:
    match = _HF.fullmatch(text)
    parts = (match["file"] or "").split("/") if match else []
    if match is None or any(part in (".", "..") for part in parts):
        raise UsageError(
            f"{text!r} is not hf:OWNER/REPO[:QUANT] or hf:OWNER/REPO/FILE",
            hint="for example hf:unsloth/Qwen3.5-4B-GGUF:Q4_K_M",
        )
    return HubReference(match["repo"], match["revision"], match["quant"], match["file"])


def _url(text: str) -> Reference:
    address = urlsplit(text)
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT", "")).netloc
    if not address.netloc:
        raise UsageError(f"{text!r} is not a whole address")
    if address.netloc in (*_HUB_HOSTS, endpoint):
        parts = [unquote(part) for part in address.path.split("/") if part]
        # OWNER/REPO, OWNER/REPO/tree/REVISION, OWNER/REPO/{resolve,blob}/REVISION/FILE...
        if len(parts) == 2 or (len(parts) == 4 and parts[2] == "tree"):
            return HubReference(f"{parts[0]}/{parts[1]}", parts[3] if len(parts) == 4 else None)
        if len(parts) >= 5 and parts[2] in ("resolve", "blob"):
            return HubReference(f"{parts[0]}/{parts[1]}", parts[3], None, "/".join(parts[4:]))
    return UrlReference(text)
