"""Listening, and stopping: running answers get some time, then they are told, then the model is freed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from pagedrun.errors import UsageError
from pagedrun.server.app import make_app
from pagedrun.server.serving import Serving

_AFTER_GRACE_S = 5  # for the last events of cancelled answers
_LOOK_S = 0.05
_BACKLOG = 1024
_IDLE_S = 75  # longer than clients keep a connection: one that is closed as they use it again is an error to them


def bind(host: str, port: int) -> socket.socket:
    """A socket that nobody can connect to before the server listens; port 0 picks one. Raises UsageError."""
    sock = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except (OSError, UnicodeError) as e:
        if sock is not None:
            sock.close()
        if isinstance(e, OSError) and e.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {port} of {host} is in use", hint="another one: --port; any that is free: --port 0"
            ) from e
        what = e.strerror if isinstance(e, OSError) else "no name of a machine"
        raise UsageError(f"cannot listen on {host}, port {port}: {what}") from e
    return sock


def address_of(sock: socket.socket) -> str:
    """http://127.0.0.1:7243"""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn, with our way to stop. A second signal does not wait."""

    def __init__(self, serving: Serving, on_start: Callable[[], None] = lambda: None) -> None:
        config = uvicorn.Config(
            make_app(serving),
            access_log=False,
            log_config=None,
            lifespan="off",
            ws="none",
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_IDLE_S,
            timeout_graceful_shutdown=_AFTER_GRACE_S,
        )
        super().__init__(config)
        self._serving = serving
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self._on_start()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Both signals stop it, and are no error: uvicorn would raise them again before the model is freed."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for one in signals:
            loop.add_signal_handler(one, self.ask_to_stop)
        try:
            yield
        finally:
            for one in signals:
                loop.remove_signal_handler(one)

    def ask_to_stop(self) -> None:
        """Stop taking requests; the second time end at once. For the event loop."""
        if self.should_exit:
            self._serving.cancel_all()
            self.force_exit = True
        self._serving.stop()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for running answers as long as they may take, then end them.

        Until then it listens: who asks for more is told that the server stops.
        """
        self._serving.stop()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._serving.settings.grace_s, self._serving.cancel_all)
        try:
            while self._serving.open_answers and not self.force_exit:  # cancelled ones are none of them
                await asyncio.sleep(_LOOK_S)
            await super().shutdown(sockets)
        finally:
            timer.cancel()
            self._serving.close()


def serve(serving: Serving, sock: socket.socket, on_start: Callable[[], None]) -> None:
    """Serve on a bound socket until a signal comes. Answers that run may end; then it returns."""
    Server(serving, on_start).run(sockets=[sock])
