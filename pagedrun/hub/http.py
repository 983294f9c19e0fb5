"""HTTP as the hub needs it: a client for files, what failures mean in plain words, and how long to wait after one.

The hub's metadata comes through huggingface_hub, which uses httpx or httpx2, depending on its version: their exceptions
are told apart by the names of the classes, which are the same in both.
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
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from pagedrun import __version__, units
from pagedrun.errors import DownloadError

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

#: Makes the error for an answer's status and headers.
Refusal = Callable[[int, Mapping[str, str]], DownloadError]

#: Hears what holds something up, and "" when it goes on.
Say = Callable[[str], None]

#: Answers that may be another one a moment later.
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524})

_PROXY_HINT = "see the variables HTTPS_PROXY, HTTP_PROXY and ALL_PROXY; NO_PROXY=HOST goes past a proxy"


def silent(text: str) -> None:
    """Where nobody listens."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, in seconds: for a connection, the next bytes, a hub's answer, and between attempts.

    attempts: how many may fail in a row without one more byte. longest_s: the longest wait that a server can ask for.
    """

    connect_s: float = 15.0
    read_s: float = 45.0
    answer_s: float = 20.0
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
def environment() -> Iterator[None]:
    """Where a client is made, of whichever library. Raises DownloadError when the variables for it are wrong."""
    try:
        yield
    except OSError as e:
        raise DownloadError(f"the certificates cannot be used: {e}", hint="see SSL_CERT_FILE and SSL_CERT_DIR") from e
    except Exception as e:
        raise DownloadError(f"the proxy settings cannot be used: {e}", hint=_PROXY_HINT) from e


@contextmanager
def client() -> Iterator[httpx.Client]:
    """A client that follows redirects; proxies and certificates are those of the environment and the system.

    It sends Authorization to no other host than the first. Raises DownloadError when those are wrong.
    """
    import httpx

    limits = httpx.Timeout(patience.read_s, connect=patience.connect_s)
    # A resumed file is the same bytes again: nothing may be compressed on the way.
    headers = {"User-Agent": f"pagedrun/{__version__}", "Accept-Encoding": "identity"}
    with environment():
        made = httpx.Client(follow_redirects=True, timeout=limits, verify=_trusted(), headers=headers)
    with made:
        yield made


def headers_of(url: str, refusal: Refusal, say: Say = silent) -> Mapping[str, str]:
    """What a server says about a file, without its body. Raises DownloadError, and what `refusal` makes.

    Not by HEAD: servers that sign their addresses refuse it.
    """

    def request() -> Mapping[str, str]:
        with client() as asking, asking.stream("GET", url) as response:
            response.raise_for_status()
            return response.headers

    return ask(request, url, refusal, say)


def ask(request: Callable[[], T], url: str, refusal: Refusal, say: Say = silent) -> T:
    """What `request` returns; made again where that may help. Raises DownloadError, and what `refusal` makes."""
    failures = 0
    while True:
        wait_s = None
        try:
            return request()
        except Exception as e:
            response = getattr(e, "response", None)
            if response is not None:
                status = response.status_code
                problem = proxy_refused(url) if status == 407 else refusal(status, response.headers)
                wait_s = retry_after(response.headers)
                hopeless = status not in TRANSIENT
            elif _is_a(e, "HTTPError", "InvalidURL"):
                problem, hopeless = network_problem(e, url), is_final(e)
            else:
                raise
            failures += 1
            wait_s = patience.wait_s(failures) if wait_s is None else wait_s
            if hopeless or failures >= patience.attempts // 2 or wait_s > patience.longest_s:
                raise problem from e
        say(f"{problem.message}; again in {units.duration(wait_s)}")
        patience.sleep(wait_s)
        say("")


def proxy_of(url: str) -> str | None:
    """The proxy (its name and port) that requests to `url` go through; None where they go straight."""
    server = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(server.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(host(url)):
        return None
    return host(proxy if "://" in proxy else f"http://{proxy}")


def proxy_refused(url: str) -> DownloadError:
    """What the status 407 means: only a proxy answers so."""
    proxy = proxy_of(url) or "that is in between"
    return DownloadError(f"the proxy {proxy} wants a user and a password (407)", hint=_PROXY_HINT)


def host(url: str) -> str:
    """The server's name (and port) in an address."""
    return urlsplit(url).netloc.rpartition("@")[2]


def network_problem(error: Exception, url: str) -> DownloadError:
    """What an exception of the client means, as an error for people."""
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
    if _is_a(error, "TooManyRedirects"):
        return DownloadError(f"{name} sends from address to address without end", hint="try again later")
    if _is_a(error, "UnsupportedProtocol", "InvalidURL"):
        return DownloadError(f"{name} is no address to fetch from: {error}", hint="it has to be http:// or https://")
    if _is_of_proxy(error, url):
        return DownloadError(f"{name} cannot be reached: {reason(error, url)}", hint=_PROXY_HINT)
    return DownloadError(f"{name}: {reason(error, url)}", hint="is there a network? Behind a proxy, set HTTPS_PROXY")


def reason(error: Exception, url: str) -> str:
    """Why a connection for `url` failed, in a few words."""
    why = _reason(error)
    return f"the proxy {proxy_of(url)}: {why}" if _is_of_proxy(error, url) else why


def _is_of_proxy(error: Exception, url: str) -> bool:
    """Whether it is the proxy that could not be reached, or that refused."""
    return _is_a(error, "ConnectError", "ConnectTimeout", "ProxyError") and proxy_of(url) is not None


def _reason(error: Exception) -> str:
    causes = list(_causes(error))
    if any(isinstance(e, socket.gaierror) for e in causes):
        return "there is no server of that name, or no network"
    if _is_a(error, "ConnectTimeout"):
        return "no answer"
    if _is_a(error, "TimeoutException"):
        return "nothing came any more"
    if _is_a(error, "DecodingError"):
        return "the answer is damaged"
    if _is_a(error, "RemoteProtocolError"):
        return "the connection ended early"
    told = next((e.strerror for e in causes if isinstance(e, OSError) and e.strerror), None)
    return told.lower() if told else str(error) or type(error).__name__


def is_final(error: Exception) -> bool:
    """Whether asking again cannot help: a certificate that is not trusted, an address that makes no sense."""
    wrong = _is_a(error, "UnsupportedProtocol", "InvalidURL", "TooManyRedirects", "LocalProtocolError")
    return wrong or any(isinstance(e, ssl.SSLCertVerificationError) for e in _causes(error))


def _is_a(error: BaseException, *names: str) -> bool:
    return not {c.__name__ for c in type(error).__mro__}.isdisjoint(names)


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
