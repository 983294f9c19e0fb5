"""HTTP as the hub needs it: one client, what its failures mean in plain words, and how long to wait after one.

Metadata and files go through the same client: huggingface_hub has changed its HTTP library twice, gives some requests
no timeout, and repeats others for half a minute without a word.
"""

from __future__ import annotations

import email.utils
import math
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pagedrun import __version__
from pagedrun.errors import DownloadError

if TYPE_CHECKING:
    import httpx

#: Makes the error for an answer's status and headers.
Refusal = Callable[[int, Mapping[str, str]], DownloadError]

#: Answers that may be another one a moment later.
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524})


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, in seconds: for a connection, for the next bytes, and between attempts.

    attempts: how many may fail in a row without one more byte. longest_s: the longest wait that a server can ask for.
    """

    connect_s: float = 15.0
    read_s: float = 45.0
    attempts: int = 6
    first_s: float = 1.0
    longest_s: float = 60.0
    sleep: Callable[[float], None] = time.sleep

    def wait_s(self, failures: int) -> float:
        """Before the attempt that follows so many failures in a row: doubled each time."""
        return min(self.first_s * float(1 << min(max(failures - 1, 0), 16)), self.longest_s)


#: In force for everything that is fetched; tests put a shorter one in its place.
patience = Patience()


@cache
def _trusted() -> ssl.SSLContext:
    """The well-known authorities, and those of the system, where companies put their own."""
    import certifi

    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


@contextmanager
def client() -> Iterator[httpx.Client]:
    """A client that follows redirects; proxies and certificates are those of the environment and the system.

    It sends Authorization to no other host than the first. Raises DownloadError when the proxy settings are wrong.
    """
    import httpx

    limits = httpx.Timeout(patience.read_s, connect=patience.connect_s)
    # A resumed file is the same bytes again: nothing may be compressed on the way.
    headers = {"User-Agent": f"pagedrun/{__version__}", "Accept-Encoding": "identity"}
    try:
        made = httpx.Client(follow_redirects=True, timeout=limits, verify=_trusted(), headers=headers)
    except (ValueError, ImportError, httpx.InvalidURL) as e:
        raise DownloadError(
            f"the proxy settings cannot be used: {e}", hint="see the variables HTTPS_PROXY, HTTP_PROXY and ALL_PROXY"
        ) from e
    with made:
        yield made


def get(
    url: str,
    refusal: Refusal,
    *,
    params: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    only_head: bool = False,
) -> httpx.Response:
    """A good answer, without its body where `only_head`; asks again where that may help.

    Not HEAD for that: servers that sign their addresses refuse it. Raises DownloadError, and what `refusal` makes.
    """
    import httpx

    failures = 0
    with client() as asking:
        while True:
            wait_s = None
            try:
                with asking.stream("GET", url, params=params, headers=headers) as response:
                    if response.is_success:
                        if not only_head:
                            response.read()
                        return response
                problem = refusal(response.status_code, response.headers)
                wait_s = retry_after(response.headers)
                hopeless = response.status_code not in TRANSIENT
            except (httpx.HTTPError, httpx.InvalidURL) as e:
                problem, hopeless = network_problem(e, url), is_final(e)
            failures += 1
            wait_s = patience.wait_s(failures) if wait_s is None else wait_s
            if hopeless or failures >= patience.attempts // 2 or wait_s > patience.longest_s:
                raise problem
            patience.sleep(wait_s)


def host(url: str) -> str:
    """The server's name (and port) in an address."""
    return urlsplit(url).netloc.rpartition("@")[2]


def network_problem(error: Exception, url: str) -> DownloadError:
    """What an exception of the client means, as an error for people."""
    import httpx

    name = host(url)
    causes = list(_causes(error))
    tls = next((e for e in causes if isinstance(e, ssl.SSLError)), None)
    if isinstance(tls, ssl.SSLCertVerificationError):
        return DownloadError(
            f"{name} cannot be trusted: {tls.verify_message}",
            hint="is the clock right? Behind a company's proxy, set SSL_CERT_FILE to its certificate",
        )
    if tls is not None:
        why = (tls.reason or str(tls)).lower().replace("_", " ")
        return DownloadError(f"{name}: no secure connection: {why}", hint="is it right that the address is https?")
    if isinstance(error, httpx.ProxyError):
        return DownloadError(f"the proxy refused: {error}", hint="see the variables HTTPS_PROXY, HTTP_PROXY, ALL_PROXY")
    if isinstance(error, httpx.TooManyRedirects):
        return DownloadError(f"{name} sends from address to address without end", hint="try again later")
    if isinstance(error, (httpx.UnsupportedProtocol, httpx.InvalidURL)):
        return DownloadError(f"{name} is no address to fetch from: {error}", hint="it has to be http:// or https://")
    return DownloadError(f"{name}: {reason(error)}", hint="is there a network? Behind a proxy, set HTTPS_PROXY")


def reason(error: Exception) -> str:
    """Why a connection failed, in a few words."""
    import httpx

    causes = list(_causes(error))
    if any(isinstance(e, socket.gaierror) for e in causes):
        return "there is no server of that name, or no network"
    if isinstance(error, httpx.ConnectTimeout):
        return "no answer"
    if isinstance(error, httpx.TimeoutException):
        return "nothing came any more"
    if isinstance(error, httpx.DecodingError):
        return "the answer is damaged"
    if isinstance(error, httpx.RemoteProtocolError):
        return "the connection ended early"
    told = next((e.strerror for e in causes if isinstance(e, OSError) and e.strerror), None)
    return told.lower() if told else str(error) or type(error).__name__


def is_final(error: Exception) -> bool:
    """Whether asking again cannot help: a certificate that is not trusted, an address that makes no sense."""
    import httpx

    wrong = (httpx.UnsupportedProtocol, httpx.InvalidURL, httpx.TooManyRedirects, httpx.LocalProtocolError)
    return isinstance(error, wrong) or any(isinstance(e, ssl.SSLCertVerificationError) for e in _causes(error))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait (a number, or a date); None when it does not say."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and those that led to it."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__
