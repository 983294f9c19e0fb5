"""One file over HTTP, resumed and verified: its name gets only what has the right size and checksum.

    ask from where the part ends  ──►  200: from the start    206: from there    416: start over
            ▲                          401, 403, 404 of the hub: the end; of the server it sent us to: ask the hub again
            │ wait, longer each time   429, 5xx: wait as long as asked
            └── connection lost, stalled, cut short, too long, of another size

A transfer gives up only after several attempts in a row that brought nothing. huggingface_hub says what is where; the
bytes are not left to it, because what its own download has got so far is deleted when the process is killed or fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pagedrun import units
from pagedrun.errors import DownloadError, ModelFileError
from pagedrun.hub import http, part
from pagedrun.hub.reference import UrlReference

if TYPE_CHECKING:
    import httpx

_MAGIC = b"GGUF"
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


def _ignore(*_: object) -> None:
    """Where nobody listens."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Who wants to hear how it goes.

    progress: (bytes done, in all; 0 for unknown); another total begins another phase. status: what is happening, where
    it is not simply going on ("" when it is). note: what people should read afterwards too.
    """

    progress: Callable[[int, int], None] = _ignore
    status: Callable[[str], None] = _ignore
    note: Callable[[str], None] = _ignore


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """One file to fetch.

    size in bytes and sha256 where they are known beforehand. version: what the server calls this content (an entity
    tag or a date), for a file without a checksum. headers: for the first server only. refused: makes the error for an
    answer that will not change. doubt: what may be wrong where another file comes than was promised.
    """

    name: str
    url: str
    size: int | None
    sha256: str | None
    version: str | None
    headers: Mapping[str, str]
    refused: http.Refusal
    doubt: str

    @property
    def identity(self) -> str:
        """What a part must be of to be gone on with; "" for what cannot be told from another content."""
        if self.sha256:
            return f"sha256:{self.sha256}"
        # Without password and signature, which may be others the next time, and are nobody's business on a disk.
        return f"{self.version} {UrlReference(self.url).source}" if self.version else ""


class _TryAgainError(Exception):
    """This attempt failed; another may not. `wait_s`: what the server asked for. `hint`: what it may be due to."""

    def __init__(self, why: str, wait_s: float | None = None, *, hint: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.wait_s = wait_s
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the file goes. All three are called while no other pull can be at work on it.

    is_there: whether it is there by now. make_way: raises where something else is there that has to stay. settle: is
    told the checksum once the file has its name.
    """

    final: Path
    is_there: Callable[[], bool]
    make_way: Callable[[], None]
    settle: Callable[[str], None]


def fetch(download: Download, target: Target, watch: Watch) -> None:
    """Bring the file to its target, unless another pull has just done it.

    Raises DownloadError and what `refused` makes; DiskFullError. What has come by then is kept for the next time.
    """

    def waiting(n_bytes: int) -> None:
        watch.status("another pull is fetching it")
        watch.progress(n_bytes, download.size or 0)

    def checking(n_bytes: int) -> None:
        watch.status("checking what is here")
        watch.progress(n_bytes, download.size or 0)

    try:
        with part.opened(target.final, download.identity, download.size, waiting) as so_far:
            watch.status("")
            if target.is_there():
                return
            target.make_way()
            so_far.take_up(checking)
            watch.status("")
            with http.client() as client:
                _Transfer(client, download, so_far, watch).run()
            so_far.become(target.final)
            target.settle(so_far.digest.hexdigest())
    except OSError as e:
        raise part.disk_error(e, target.final) from e


class _Transfer:
    """The attempts that make a part whole."""

    def __init__(self, client: httpx.Client, download: Download, so_far: part.Part, watch: Watch) -> None:
        self._client = client
        self._download = download
        self._part = so_far
        self._watch = watch
        self._size = download.size
        self._ranges = True
        self._answered = False
        self._pieces = 2 if so_far.size else 0  # requests that the content was put together from; more than 1: many
        self._started_over = False

    def run(self) -> None:
        """Until the part is the whole file, verified."""
        while True:
            self._fill()
            found, wanted = self._part.digest.hexdigest(), self._download.sha256
            if wanted is None:
                self._check_header()
            if wanted in (None, found):
                return
            self._part.restart()
            if self._pieces < 2 or self._started_over:
                raise DownloadError(
                    f"{self._download.name} is not the file that was promised: sha256 {found}, not {wanted}",
                    hint=self._download.doubt,
                )
            self._watch.note(f"{self._download.name}: what came in pieces does not fit together; starting over")
            self._started_over, self._pieces = True, 0

    def _fill(self) -> None:
        failures, best = 0, self._part.size
        while self._size is None or self._part.size != self._size or not self._part.size:
            try:
                self._attempt()
                return
            except _TryAgainError as e:
                failures = 1 if self._part.size > best else failures + 1
                best = max(best, self._part.size)
                self._give_up_or_wait(e, failures)

    def _give_up_or_wait(self, problem: _TryAgainError, failures: int) -> None:
        patience = http.patience
        wait_s = patience.wait_s(failures) if problem.wait_s is None else problem.wait_s
        # A server that has never answered will hardly begin to.
        attempts = patience.attempts if self._answered else patience.attempts // 2
        if failures >= attempts or wait_s > patience.longest_s:
            server = http.host(self._download.url)
            later = f"in {units.duration(wait_s)}" if wait_s > patience.longest_s else "later"
            raise DownloadError(
                f"{self._download.name} could not be fetched from {server}: {problem.why}",
                hint=problem.hint or f"try again {later}; {self._kept()}",
            ) from problem
        self._watch.status(f"{problem.why}; again in {units.duration(wait_s)}")
        patience.sleep(wait_s)
        self._watch.status("")

    def _kept(self) -> str:
        size = self._part.size if self._part.identity else 0
        return f"it goes on after the {units.size(size)} that are here" if size else "nothing has come so far"

    def _attempt(self) -> None:
        """One request, from where the part ends. Raises _TryAgainError."""
        import httpx

        self._pieces += 1
        try:
            with self._client.stream("GET", self._download.url, headers=self._headers()) as response:
                self._answered = True
                self._accept(response)
                for block in response.iter_raw():
                    self._take(block)
        except (httpx.HTTPError, httpx.InvalidURL) as e:
            if http.is_final(e):
                raise http.network_problem(e, self._download.url) from e
            raise _TryAgainError(http.reason(e, self._download.url)) from e
        if self._part.size < (self._size or 1):
            raise _TryAgainError("the answer ended early")

    def _headers(self) -> dict[str, str]:
        headers = dict(self._download.headers)
        if self._part.size and self._ranges:
            headers["Range"] = f"bytes={self._part.size}-"
            version = self._download.version
            # With a checksum the content is verified anyway, and each of a hub's servers has tags of its own.
            if version and not self._download.sha256 and not version.startswith("W/"):
                headers["If-Range"] = version
        return headers

    def _accept(self, response: httpx.Response) -> None:
        """Judge the answer before its body is read; the part then ends where the body begins."""
        status = response.status_code
        if status not in (200, 206):
            self._refuse(response)
        if response.headers.get("content-type", "").startswith("text/html"):
            raise DownloadError(
                f"{http.host(str(response.url))} sent a web page in place of {self._download.name}",
                hint="does this network want you to log in first, or is a proxy in between?",
            )
        if response.headers.get("content-encoding", "identity") != "identity":
            raise DownloadError(
                f"{http.host(str(response.url))} sends {self._download.name} compressed only",
                hint="such a file cannot be gone on with, nor verified: get it from another server",
            )
        total = self._total_of_range(response) if status == 206 else self._total_of_all(response)
        if None not in (total, self._size) and total != self._size:
            why = f"the server has {total:,} bytes, and {self._size:,} are expected"
            raise _TryAgainError(why, hint=self._download.doubt)
        self._size = self._size or total
        self._watch.status("")

    def _refuse(self, response: httpx.Response) -> None:
        status, headers = response.status_code, response.headers
        if status == 416:
            self._part.restart()
            raise _TryAgainError("the server has less than is here")
        if status == 407:
            raise http.proxy_refused(self._download.url)
        if status in http.TRANSIENT:
            what = "too many requests" if status == 429 else f"the server has a problem ({status})"
            raise _TryAgainError(what, http.retry_after(headers))
        if response.history and response.url.netloc != response.history[0].url.netloc:
            # The address that the hub gave us has expired: the next attempt gets a new one.
            raise _TryAgainError(f"{http.host(str(response.url))} refused ({status})")
        raise self._download.refused(status, headers)

    def _total_of_range(self, response: httpx.Response) -> int | None:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
        if match is None or int(match[1]) != self._part.size or not self._ranges:
            self._ranges = False  # it cannot be relied on: from the start, in one go
            self._part.restart()
            raise _TryAgainError("the server sent another range than asked for")
        return None if match[3] == "*" else int(match[3])

    def _total_of_all(self, response: httpx.Response) -> int | None:
        if self._part.size:
            self._part.restart()
            self._pieces = 1
        length = response.headers.get("content-length", "")
        return int(length) if length.isdecimal() else None

    def _take(self, block: bytes) -> None:
        if self._size is not None and self._part.size + len(block) > self._size:
            self._part.restart()
            raise _TryAgainError("the server sent more than it has")
        before = self._part.size
        self._part.append(block)
        is_model = self._download.name.lower().endswith(".gguf")  # a repository's other files are what they are
        if is_model and before < len(_MAGIC) <= self._part.size and self._part.head(len(_MAGIC)) != _MAGIC:
            self._check_header()
        self._watch.progress(self._part.size, self._size or 0)

    def _check_header(self) -> None:
        """Raise DownloadError when what came is no model, whatever the server calls it."""
        from pagedrun.gguf_file import check_file

        path = self._part.path
        self._part.close()
        try:
            check_file(path)
        except ModelFileError as e:
            self._part.restart()
            server = http.host(self._download.url)
            said = e.message.replace(str(path), f"what {server} sent for {self._download.name}")
            raise DownloadError(said, hint="is it the address of the file itself?") from e
