"""Listening, and stopping: running answers get some time, then they are told, conversations are saved, models freed."""

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
from pagedrun.server.ending import Ending
from pagedrun.server.models import Models

_AFTER_GRACE_S = 5  # for the last events of cancelled answers
_LOOK_S = 0.05
_TRIM_S = 60  # a server under load keeps more and more of what it has freed
_BACKLOG = 1024
_IDLE_S = 75  # longer than clients keep a connection: one that is closed as they use it again is an error to them


def bind(host: str, port: int) -> socket.socket:
    """A socket that nobody can connect to before the server listens; port 0 picks one. Raises UsageError."""
    sock = None
    try:
        found = socket.getaddrinfo(
            host.removeprefix("[").removesuffix("]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
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
        hint = "an address of this machine: 127.0.0.1, ::1, 0.0.0.0 for all"
        raise UsageError(f"cannot listen on {host or repr(host)}, port {port}: {what}", hint=hint) from e
    return sock


def address_of(sock: socket.socket) -> str:
    """http://127.0.0.1:7243"""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn, with our way to stop. A further signal ends what it waits for: answers, or saving conversations."""

    def __init__(
        self,
        models: Models,
        on_start: Callable[[], None] = lambda: None,
        told: Callable[[str], None] = lambda line: None,
        trims: Callable[[], None] = lambda: None,
    ) -> None:
        config = uvicorn.Config(
            make_app(models),
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
        self._models = models
        self._on_start = on_start
        self._told = told
        self._trims = trims
        self._ending: Ending | None = None
        self._trimming: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self._models.start()
        self._trimming = asyncio.create_task(self._trim())
        self._on_start()

    async def _trim(self) -> None:
        while True:
            await asyncio.sleep(_TRIM_S)
            await asyncio.get_running_loop().run_in_executor(self._models.prepare, self._trims)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """All of them stop it, and are no error: uvicorn would raise them again before the model is freed."""
        loop = asyncio.get_running_loop()
        signals = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
            signals.append(signal.SIGHUP)  # its terminal was closed
        for one in signals:
            loop.add_signal_handler(one, self.ask_to_stop)
        try:
            yield
        finally:
            for one in signals:
                loop.remove_signal_handler(one)

    def ask_to_stop(self) -> None:
        """Stop taking requests; the second time end what is waited for. For the event loop."""
        if self._ending is not None:
            self._ending.skip()
        elif self.should_exit:
            self._models.cancel_all()
            self.force_exit = True
        self._models.stop()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for running answers as long as they may take, then end them.

        Until then it listens: who asks for more is told that the server stops.
        """
        self._models.stop()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._models.settings.grace_s, self._models.cancel_all)
        try:
            while self._models.answering and not self.force_exit:  # cancelled ones are none of them
                await asyncio.sleep(_LOOK_S)
            await super().shutdown(sockets)
        finally:
            timer.cancel()
            if self._trimming is not None:
                self._trimming.cancel()
            self._ending = Ending(self._models.loaded, self._models.settings.saving_s, self._told)
            await self._ending.wait()


def serve(
    models: Models,
    sock: socket.socket,
    on_start: Callable[[], None],
    told: Callable[[str], None] = lambda line: None,
    trims: Callable[[], None] = lambda: None,
) -> None:
    """Serve on a bound socket until a signal comes. Answers that run may end, conversations are saved; then it returns.

    told: gets a line for people when that takes a while. trims: gives freed memory back to the system, now and then.
    """
    Server(models, on_start, told, trims).run(sockets=[sock])
