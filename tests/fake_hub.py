"""A hub on this machine: the parts of the Hugging Face hub that pagedrun uses, with faults on order.

    GET /api/models/OWNER/REPO[/revision/REV]     files, sizes, checksums        faults at "api"
    GET /api/models?search=...                    search                         "api"
    GET /OWNER/REPO/resolve/REV/FILE              a redirect to the other port   "resolve"
    GET other port /blob/SHA256?sig=N             the bytes, with ranges         "cdn"
    GET other port /files/NAME                    a file without a checksum      "file"

A fault is used up by the requests that it meets; what a fault does to a body begins at a byte of the body that is sent.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "c" * 40
HEADER = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)
HTML = b"<!DOCTYPE html><html><body>Please log in</body></html>"


def model(n_bytes: int, seed: int = 0) -> bytes:
    """What begins as a GGUF file, of that size."""
    return HEADER + random.Random(seed).randbytes(n_bytes - len(HEADER))


@dataclass
class Fault:
    """where: the kind of request. kind: see `_Handler`. times: how many requests it meets; None: all of them.

    at: a byte of the body. status and headers: of the answer, for the kind "status".
    """

    where: str
    kind: str
    times: int | None = 1
    at: int = 0
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Repo:
    files: dict[str, bytes]
    gated: bool = False
    license: str = "apache-2.0"
    lfs: bool = True
    commit: str = COMMIT
    downloads: int = 0


class FakeHub:
    """Both servers, and what they serve; `requests` has (where, path, headers) of everything asked."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.files: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.waits: list[float] = []  # for tests to have pauses noted in place of made
        self.tags = True
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._signature = 0
        self._servers = [_Server(("127.0.0.1", 0), _handler(self, cdn)) for cdn in (False, True)]
        for server in self._servers:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._servers[0].server_port}"

    @property
    def cdn(self) -> str:
        # Another name of this machine: a redirect to it is one to another host.
        return f"http://localhost:{self._servers[1].server_port}"

    def file_url(self, name: str) -> str:
        return f"{self.cdn}/files/{name}"

    def close(self) -> None:
        self.ended.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def asked(self, where: str) -> list[dict[str, str]]:
        """The headers of the requests of that kind."""
        with self._lock:
            return [headers for kind, _, headers in self.requests if kind == where]

    def met(self, where: str, path: str, headers: dict[str, str]) -> Fault | None:
        """Note a request; the fault it meets."""
        with self._lock:
            self.requests.append((where, path, headers))
            for fault in self.faults:
                if fault.where == where and fault.times != 0:
                    fault.times = None if fault.times is None else fault.times - 1
                    return fault
        return None

    def sign(self) -> int:
        with self._lock:
            self._signature += 1
            return self._signature

    def blob(self, sha256: str) -> bytes | None:
        contents = [c for repo in self.repos.values() for c in repo.files.values()]
        return next((c for c in contents if hashlib.sha256(c).hexdigest() == sha256), None)


@contextmanager
def running() -> Iterator[FakeHub]:
    hub = FakeHub()
    try:
        yield hub
    finally:
        hub.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that leave are the point of these tests."""


def _handler(hub: FakeHub, cdn: bool) -> type[BaseHTTPRequestHandler]:
    return type("Handler", (_Handler,), {"hub": hub, "is_cdn": cdn})


class _Handler(BaseHTTPRequestHandler):
    """One connection. Faults of the kind:

    drop         the connection ends after `at` bytes of the body
    stall        nothing more comes after `at` bytes
    less         the length that is announced, and sent, is `at` bytes less
    more         `at` more bytes are announced and sent
    corrupt      the byte at `at` is another
    no_ranges    the whole file, whatever was asked for
    bad_range    another range than was asked for
    html         a web page
    gzip         it says that it is compressed
    status       that status, with those headers
    loop         a redirect to the same address
    silent       the connection is closed without an answer
    garbage      no HTTP
    """

    protocol_version = "HTTP/1.1"
    hub: FakeHub
    is_cdn: bool

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        where = self._where(path)
        fault = self.hub.met(where, path, {k.lower(): v for k, v in self.headers.items()})
        kind = fault.kind if fault else ""
        if fault and kind == "status":
            self._send(fault.status, b"", fault.headers)
        elif kind == "html":
            self._send(200, HTML, {"Content-Type": "text/html; charset=utf-8"})
        elif kind == "loop":
            self._send(302, b"", {"Location": self.path})
        elif kind in ("silent", "garbage"):
            self.wfile.write(b"what?\r\n" if kind == "garbage" else b"")
            self._hang_up()
        else:
            getattr(self, f"_{where}")(path, fault)

    def _where(self, path: str) -> str:
        if self.is_cdn:
            return "file" if path.startswith("/files/") else "cdn"
        return "api" if path.startswith("/api/") else "resolve"

    def _api(self, path: str, fault: Fault | None) -> None:
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path)
        if path == "/api/models":
            wanted = parse_qs(urlsplit(self.path).query).get("search", [""])[0].lower().split()
            names = [n for n in self.hub.repos if all(word in n.lower() for word in wanted)]
            found = [{"id": n, "downloads": self.hub.repos[n].downloads} for n in names]
            self._json(found, fault)
        elif match is None or match[1] not in self.hub.repos:
            self._send(401, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif match[2] not in (None, "main", self.hub.repos[match[1]].commit):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            self._json(_info(match[1], self.hub.repos[match[1]]), fault)

    def _json(self, value: Any, fault: Fault | None) -> None:
        self._body(json.dumps(value).encode(), fault, {"Content-Type": "application/json"}, ranges=False)

    def _resolve(self, path: str, fault: Fault | None) -> None:
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        repo = self.hub.repos.get(match[1]) if match else None
        if match is None or repo is None or match[3] not in repo.files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound" if repo else "RepoNotFound"})
        elif repo.gated and "Authorization" not in self.headers:
            self._send(401, b"", {"X-Error-Code": "GatedRepo"})
        else:
            sha256 = hashlib.sha256(repo.files[match[3]]).hexdigest()
            self._send(302, b"", {"Location": f"{self.hub.cdn}/blob/{sha256}?sig={self.hub.sign()}"})

    def _cdn(self, path: str, fault: Fault | None) -> None:
        content = self.hub.blob(path.rpartition("/")[2])
        if content is None:
            self._send(404, b"", {})
        else:
            self._body(content, fault, {}, ranges=True)

    def _file(self, path: str, fault: Fault | None) -> None:
        content = self.hub.files.get(path.removeprefix("/files/"))
        if content is None:
            self._send(404, b"", {})
            return
        tag = f'"{hashlib.md5(content).hexdigest()}"'
        unchanged = self.headers.get("If-Range", tag) == tag
        self._body(content, fault, {"ETag": tag} if self.hub.tags else {}, ranges=unchanged)

    def _body(self, content: bytes, fault: Fault | None, headers: dict[str, str], *, ranges: bool) -> None:
        kind, at = (fault.kind, fault.at) if fault else ("", 0)
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        status, start, total = 200, 0, len(content)
        if match and ranges and kind != "no_ranges":
            start = int(match[1])
            if start >= total:
                self._send(416, b"", {"Content-Range": f"bytes */{total}"})
                return
            status = 206
            shown = start + 1 if kind == "bad_range" else start
            headers = headers | {"Content-Range": f"bytes {shown}-{total - 1}/{total}"}
        body = bytearray(content[start:])
        if kind == "corrupt" and body:
            body[at % len(body)] ^= 0xFF
        elif kind == "less":
            del body[max(len(body) - at, 0) :]
        elif kind == "more":
            body += bytes(at)
        elif kind == "gzip":
            headers = headers | {"Content-Encoding": "gzip"}
        self._start(status, len(body), headers)
        with suppress(OSError):
            if kind in ("drop", "stall"):
                self.wfile.write(body[: min(at, max(len(body) - 1, 0))])
                self.wfile.flush()
                if kind == "stall":
                    self.hub.ended.wait(20)
                self._hang_up()
            else:
                self.wfile.write(body)

    def _hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(2)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self._start(status, len(body), headers)
        with suppress(OSError):
            self.wfile.write(body)

    def _start(self, status: int, length: int, headers: dict[str, str]) -> None:
        with suppress(OSError):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(length))
            self.end_headers()


def _info(name: str, repo: Repo) -> dict[str, Any]:
    return {
        "id": name,
        "sha": repo.commit,
        "gated": "manual" if repo.gated else False,
        "tags": ["gguf", f"license:{repo.license}"],
        "siblings": [_sibling(path, content, repo.lfs) for path, content in repo.files.items()],
    }


def _sibling(path: str, content: bytes, lfs: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"rfilename": path, "size": len(content), "blobId": hashlib.sha1(content).hexdigest()}
    if lfs:
        found["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return found
