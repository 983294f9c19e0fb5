"""`pagedrun serve`: a model behind OpenAI's API."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from pagedrun import running
from pagedrun.cli import console, generate
from pagedrun.cli.options import (
    EngineOptions,
    TemplateOptions,
    read_option_file,
    with_options,
)
from pagedrun.cli.serve_models import ModelsArgument, ServedModelOptions
from pagedrun.errors import UsageError
from pagedrun.paths import responses_dir

if TYPE_CHECKING:
    from pagedrun.cli.sources import LocalSource
    from pagedrun.hub import LocatedModel
    from pagedrun.server.serving import Loaded, ServeSettings

#: PAGE on the keys of a telephone. Nothing else is known to use it, so it can stand beside other servers.
PORT = 7243
#: Models that --any-installed lets be loaded beside those that are named, as far as swap_space is divided.
_MORE = 2
_A_YEAR_S = 31_536_000  # longer times are taken for mistakes, and infinity is no JSON


def _server(flags: str, help_text: str, metavar: str, **more: Any) -> Any:
    return typer.Option(*flags.split(), help=help_text, metavar=metavar, rich_help_panel="Server", **more)


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Where to listen, and whom to answer."""

    host: Annotated[str, _server("--host", "Address to listen on; 0.0.0.0: all.", "ADDRESS")] = "127.0.0.1"
    port: Annotated[int, _server("--port", "Port; 0: any that is free.", "NUMBER", min=0, max=65535)] = PORT
    api_key: Annotated[
        list[str] | None,
        _server("--api-key", "Answer only who sends this key; may be repeated. Others can read it in ps.", "KEY"),
    ] = None
    api_key_file: Annotated[
        Path | None, _server("--api-key-file", "A file with keys, one a line. Or: PAGEDRUN_API_KEY.", "FILE")
    ] = None
    cors: Annotated[
        list[str] | None,
        _server("--cors", "Let web pages of this origin ask; may be repeated, * for all.", "ORIGIN"),
    ] = None
    allowed_host: Annotated[
        list[str] | None,
        _server("--allowed-host", "On loopback, a name by which a proxy calls the server; may be repeated.", "NAME"),
    ] = None
    name: Annotated[
        list[str] | None,
        _server("--served-model-name", "What clients may call the model; may be repeated.", "NAME"),
    ] = None
    max_queue: Annotated[
        int, _server("--max-queue", "Answers that may wait; beyond, clients get 429.", "NUMBER", min=0)
    ] = 64
    max_body: Annotated[str, _server("--max-body", "Largest request.", "SIZE")] = "32MiB"
    keep_alive: Annotated[
        float,
        _server(
            "--keep-alive-interval",
            "A stream says that it lives after so many seconds.",
            "SECONDS",
            min=0.1,
            max=_A_YEAR_S,
        ),
    ] = 5.0
    grace: Annotated[
        float,
        _server("--grace", "How long answers may go on after Ctrl-C or SIGTERM.", "SECONDS", min=0, max=_A_YEAR_S),
    ] = 30.0

    saving: Annotated[
        float,
        _server("--saving-time", "How long conversations may be saved at the end.", "SECONDS", min=0, max=_A_YEAR_S),
    ] = 30.0
    keep_responses: Annotated[
        bool,
        typer.Option(
            "--keep-responses/--forget-responses",
            help="Keep responses on disk, so that previous_response_id goes on after a restart.",
            rich_help_panel="Server",
        ),
    ] = True

    def keys(self, file_option: str = "--api-key-file") -> tuple[str, ...]:
        """All keys, of options, file and environment. file_option: what named the file. Raises UsageError."""
        keys = list(self.api_key or ())
        if self.api_key_file is not None:
            text = read_option_file(self.api_key_file, file_option)
            found = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
            if not found:
                raise UsageError(f"{file_option}: {self.api_key_file} has no key")
            keys += found
        variable = os.environ.get("PAGEDRUN_API_KEY")
        if variable is not None and not variable.strip():
            raise UsageError("PAGEDRUN_API_KEY is empty", hint="unset it to serve without a key")
        if variable:
            keys.append(variable.strip())
        if not all(key.strip() and key.isprintable() and key.isascii() for key in keys):
            raise UsageError("an API key is empty, or has other characters than printable ones of ASCII")
        return tuple(keys)


@dataclass(frozen=True, kw_only=True)
class ServingEngineOptions(EngineOptions):
    """The same, for several clients."""

    defaults: ClassVar[Mapping[str, Any]] = {"max_num_seqs": 4}
    log_from: ClassVar[int] = 2

    verbose: Annotated[
        int,
        typer.Option(
            "-v",
            "--verbose",
            help="Show a line for each request, and tracebacks; -vv: llama.cpp's log too.",
            count=True,
            show_default=False,
            callback=console.set_verbose,
            rich_help_panel="Engine",
        ),
    ] = 0


@with_options
def serve(
    ctx: typer.Context,
    models: ModelsArgument = None,
    *,
    named: ServedModelOptions,
    server: ServerOptions,
    template: TemplateOptions,
    engine: ServingEngineOptions,
) -> None:
    """Serve models to programs that speak OpenAI's API, at http://127.0.0.1:7243/v1.

    Without MODEL: the one used last, or the small one that comes with pagedrun. The first of several is loaded at once,
    others when somebody asks for them; where memory is short those leave that nobody uses, the one used longest ago
    first. gpu_memory, swap_space and cache_disk are for all of them together. /docs lists what can be asked. Ctrl-C,
    SIGTERM or a terminal that closes stop it: running answers may end first, a second Ctrl-C ends them; then
    conversations are saved, which a further one skips. Requests are not logged; -v shows their paths, status and time,
    but neither prompts nor answers. A model for embeddings is served at /v1/embeddings. A browser finds a page to chat
    with at /.

    Options can be in the settings file too, by their long names with _ for -: those under Engine as settings of their
    own, the others in a table [serve] after them.

    Exit codes: 0 stopped, 1 it could not start, 2 wrong usage.
    """
    from pagedrun.cli import serve_checks
    from pagedrun.cli.serve_file import ServeFile

    file = ServeFile(engine.config, lambda name: _is_given(ctx, name) or (name == "model_option" and bool(models)))
    named, server, template = file.fill(named), file.fill(server), file.fill(template)
    file.check()
    names = [*(models or ()), *(named.model_option or ())]
    if len(names) > 1 and (server.name or template.chat_template):
        option = file.called("served_model_name" if server.name else "chat_template")
        raise UsageError(f"{option} is for one model, and {len(names)} are named")
    keep_s = named.keep_s(len(names), file.called("keep_alive"))
    keys = server.keys(file.called("api_key_file"))
    max_body = serve_checks.largest_body(server.max_body, file.called("max_body"))
    serve_checks.check_origins(server.cors or (), file.called("cors"))
    serve_checks.check_names(server.name or (), file.called("served_model_name"))
    serve_checks.check_hosts(server.allowed_host or (), file.called("allowed_host"))
    settings = engine.settings()  # what is wrong there is said before anything is loaded
    template_text = template.template_text()
    from pagedrun.cli.sources import InstalledModels, Loader, LocalSource, check_names
    from pagedrun.native.library import give_back_heap
    from pagedrun.server import run
    from pagedrun.server.models import Models
    from pagedrun.sharing import SharedMemory

    sock = run.bind(server.host, server.port)
    record = running.Record()
    try:

        def how(located: LocatedModel) -> ServeSettings:
            return replace(
                _how(server, template, located, keys, max_body), hosts=_hosts(server, sock), secret=record.secret
            )

        found = {
            located.path: located
            for name in names or [None]
            for located in [generate.find_model(name, pull=named.pull, any_task=True)]
        }
        memory = SharedMemory(settings, len(found) + (_MORE if named.any_installed else 0))
        loader = Loader(memory, engine, template, template_text)
        sources = [LocalSource(located, how(located), loader) for located in found.values()]
        check_names(sources)
        first = sources[0].load((), lambda: False)
        serving = Models(
            first.settings,
            [first],
            sources,
            installed=InstalledModels(how, loader, sources) if named.any_installed else None,
            keep_s=keep_s,
            say=console.note,
        )
        try:
            _greet(first, server.host)
            _log()
            listening = f"listening on {run.address_of(sock)}/v1 (Ctrl-C stops)"

            def on_start() -> None:
                _announce(record, run.address_of(sock), sources, any_installed=named.any_installed)
                console.note(listening)

            run.serve(serving, sock, on_start, console.note, give_back_heap)
        finally:
            serving.close()
        console.note("stopped")
    finally:
        sock.close()
        record.close()


def _how(
    server: ServerOptions, template: TemplateOptions, located: LocatedModel, keys: tuple[str, ...], max_body: int
) -> ServeSettings:
    from pagedrun.server.serving import ServeSettings

    spec = located.spec
    return ServeSettings(
        names=tuple(dict.fromkeys(server.name or [_name(located)])),
        max_queue=server.max_queue,
        max_body=max_body,
        keep_alive_s=server.keep_alive,
        grace_s=server.grace,
        keys=keys,
        cors=tuple(server.cors or ()),
        system=template.system,
        think=generate.think_mode(located, template),
        responses=responses_dir() if server.keep_responses else None,
        saving_s=server.saving,
        sampling_for=(lambda think: spec.sampling_for(think=think)) if spec else None,
    )


def _name(located: LocatedModel) -> str:
    """What clients call it: as the user did, of a path the file's name."""
    return Path(located.name).stem if located.name == str(located.path) else located.name


def _hosts(server: ServerOptions, sock: socket.socket) -> tuple[str, ...]:
    """The names by which a server may be called: any, unless only this machine reaches it."""
    from pagedrun.server.guard import is_loopback

    if not is_loopback(sock.getsockname()[0]):
        return ()
    return ("localhost", *map(str.lower, (server.host, *(server.allowed_host or ()))))


def _greet(loaded: Loaded, host: str) -> None:
    console.note(f"{loaded.name} · {loaded.summary} · {loaded.service.model.device}")
    if not loaded.settings.hosts and not loaded.settings.keys:
        console.warn(f"whoever reaches {host} may ask: there is no API key (--api-key-file)")


def _announce(record: running.Record, url: str, sources: Sequence[LocalSource], *, any_installed: bool) -> None:
    """Let `ps`, `chat` and `complete` find the server."""
    offered = [running.Offered(one.settings.names[0], str(one.located.path.absolute())) for one in sources]
    try:
        record.write(running.reachable(url), offered, any_installed=any_installed)
    except OSError as e:
        console.warn(f"ps, chat and complete will not find this server: {running.servers_dir()}: {e.strerror}")


def _log() -> None:
    """With -v, a line for each request."""
    import logging

    if console.verbose:
        logging.basicConfig(format="%(asctime)s %(message)s")
        logging.getLogger("pagedrun.server").setLevel(logging.INFO)


def _is_given(ctx: typer.Context, name: str) -> bool:
    """Whether the command line has an option."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
