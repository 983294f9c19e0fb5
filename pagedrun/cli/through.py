"""Whether a server that runs answers `chat` and `complete`, or this process: who has the model loaded need not load it.

--server URL        that one, or an error
--no-server         this process
neither             one of the user's own that has the same file, unless it was loaded with other settings than the
                    user has set; what speaks against it is said once
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pagedrun import hub, running
from pagedrun.cli import console, generate
from pagedrun.errors import ModelError, PagedrunError, UsageError
from pagedrun.units import count

if TYPE_CHECKING:
    from pagedrun.cli.options import EngineOptions, ServerChoice, TemplateOptions
    from pagedrun.remote import Address, RemoteEngine, RemoteService
    from pagedrun.service import Answerer

_NONE = "none"
#: Settings that change no answer, and are for all of a server. Who types one means it; others may have set it for both.
_FOR_ALL = frozenset(
    {
        "cache_disk", "debug_kv", "disk_space", "gpu_memory", "max_stall", "page_size", "policy", "prefetch_mode",
        "prefill_chunk", "snapshot_interval", "spill", "swap_space", "threads",
    }
)  # fmt: skip


def named_server(choice: ServerChoice) -> str | None:
    """The server that the user names: its address; "": none at all; None: nothing is said. Raises UsageError."""
    if choice.no_server and choice.server not in (None, _NONE):
        raise UsageError("--server and --no-server exclude each other")
    if choice.no_server:
        return ""
    given = choice.server if choice.server is not None else os.environ.get("PAGEDRUN_SERVER") or None
    if given is None:
        return None
    return "" if given.strip().lower() == _NONE else _address(given)


def default_model(choice: ServerChoice) -> str | None:
    """What a server that the user names has, for who names no model: of one on this machine its file."""
    if not (url := named_server(choice)):
        return None
    from pagedrun.remote import get

    record = running.at(url)
    if record is not None and record.models:
        return record.models[0].path
    return str(get(_known(url, None), "/v1/models")["data"][0]["id"])


@contextmanager
def open_answerer(
    located: hub.LocatedModel, engine: EngineOptions, template: TemplateOptions, choice: ServerChoice, *, session: bool
) -> Iterator[Answerer]:
    """Who answers for this model, for the duration of a `with` block; says on stderr which server it is.

    session: a named one is to be kept. Raises what `generate.open_model` raises, and EngineError for a server that was
    named and cannot answer.
    """
    engine.settings()  # what is wrong there is said in any case
    found = _find(located, engine, choice, session=session)
    if found is None:
        with generate.open_model(located, engine, template) as service:
            yield service
        return
    with _opened(located, engine, template, *found) as remote:
        console.note(f"answered by the server at {remote.where}")
        generate.tell_of_room(engine.settings(), remote)
        yield remote


def _find(
    located: hub.LocatedModel, engine: EngineOptions, choice: ServerChoice, *, session: bool
) -> tuple[Address, RemoteEngine] | None:
    url = named_server(choice)
    if url == "":
        return None
    if url is not None:
        return _named(url, located, engine, session=session)
    for server, name in _having(located):
        address = _known(server.url, server)
        try:
            return address, _fitting(address, name, located, _meant(engine), session=session)
        except PagedrunError as e:
            console.note(console.printable(f"loaded here: {e.message}"))
            if e.hint:
                console.note(console.printable(f"hint:  {console.typed(e.hint)}"))
    return None


def _having(located: hub.LocatedModel) -> list[tuple[running.Running, str]]:
    """The user's servers that have a model, and what they call it: first who has it loaded, last who would find it."""
    servers = running.found()
    have = [(one, name) for one in servers if (name := one.has(located.path)) is not None]
    others = [one for one in servers if one.any_installed and one.has(located.path) is None]
    listed = _listed(located) if others else None
    candidates = have + [(one, listed) for one in others if listed is not None]
    return sorted(candidates, key=lambda one: not _is_loaded(*one)) if len(candidates) > 1 else candidates


def _is_loaded(server: running.Running, name: str) -> bool:
    """Whether it need not load it; False also for a server that does not say."""
    from pagedrun.remote import get

    try:
        return bool(get(_known(server.url, server), f"/v1/models/{quote(name, safe='')}")["pagedrun"]["loaded"])
    except (PagedrunError, KeyError, TypeError):
        return False


def _listed(located: hub.LocatedModel) -> str | None:
    """What `pagedrun list` calls a model; None where it does not show it."""
    from pagedrun.hub import library

    return next((entry.name for entry in library.entries() if located.path in entry.paths), None)


def _named(
    url: str, located: hub.LocatedModel, engine: EngineOptions, *, session: bool
) -> tuple[Address, RemoteEngine]:
    from pagedrun.remote import get

    record = running.at(url)
    address = _known(url, record)
    name = record.has(located.path) if record else None
    if name is None:
        name = _called(get(address, "/v1/models"), located, url)
    given = _given(engine)
    typed = {name: given[name] for name, value in engine.flags().items() if value is not None}
    try:
        return address, _fitting(address, name, located, typed, session=session)
    except UsageError as e:
        raise UsageError(e.message, hint="leave the setting out, or load the model here: --no-server") from e


def _called(models: Any, located: hub.LocatedModel, url: str) -> str:
    """What a server calls a model; whether it is the same is seen by its file. Raises ModelError."""
    names = [str(model["id"]) for model in models["data"]]
    for name in (located.name, located.path.stem):
        if name in names:
            return name
    if len(names) == 1:
        return names[0]
    raise ModelError(f"the server at {url} has no {located.name}", hint=f"it has {', '.join(names)}")


def _fitting(
    address: Address, name: str, located: hub.LocatedModel, given: Mapping[str, Any], *, session: bool
) -> RemoteEngine:
    """The server's model, if it is this one, loaded as the user wants it. Raises PagedrunError that says why not."""
    from pagedrun.gguf_file import split_parts
    from pagedrun.remote import connect
    from pagedrun.sessions import model_digest

    with console.waiting(f"asking the server at {address.url}"):
        found = connect(address, name)
    if found.identity is None or found.identity.model != model_digest(split_parts(located.path)):
        raise ModelError(f"the server at {address.url} has another file under the name {name}")
    differs = [text for key, value in given.items() if (text := _difference(found, key, value))]
    if differs:
        hint = "leave that out to use the server"
        raise UsageError(f"the server at {address.url} has {', '.join(differs)}", hint=hint)
    if session and not address.secret:
        raise UsageError(f"the server at {address.url} is none of yours on this machine, and cannot keep a session")
    return found


def _difference(found: RemoteEngine, name: str, value: Any) -> str:
    """How a setting of the user's differs from the server's; "" where it does not, or does not matter."""
    theirs = getattr(found.config, name)
    if name == "max_num_seqs" or value == theirs:
        return ""
    if name == "max_seq_len" and value == found.limits.max_seq_len:
        return ""
    if name == "gpu_layers" and not value and not found.model.on_gpu:
        return ""
    shown = count(found.limits.max_seq_len) if name == "max_seq_len" else theirs
    return f"{name} {shown}, not {count(value) if isinstance(value, int) else value}"


@contextmanager
def _opened(
    located: hub.LocatedModel, engine: EngineOptions, template: TemplateOptions, address: Address, found: RemoteEngine
) -> Iterator[RemoteService]:
    from pagedrun.first_run import ensure_runtime
    from pagedrun.hub.library import remember_use
    from pagedrun.hub.verify import explained

    spec = located.spec
    text = template.template_text() or (spec.chat_template if spec else None)
    ensure_runtime()
    with explained(located.path):
        from pagedrun.native.vocabulary import load_vocabulary
        from pagedrun.remote import RemoteService

        reading = load_vocabulary(located.path, chat_template=text, verbose=console.verbose >= engine.log_from)
    with reading as words:
        remember_use(located.path)
        defaults = spec.sampling_for(think=template.think) if spec else {}
        with RemoteService(address, found, words.vocab, words.templates, sampling_defaults=defaults) as remote:
            yield remote


def _meant(engine: EngineOptions) -> dict[str, Any]:
    """Settings that a server has to have been loaded with."""
    flags = engine.flags()
    return {n: value for n, value in _given(engine).items() if flags.get(n) is not None or n not in _FOR_ALL}


def _given(engine: EngineOptions) -> dict[str, Any]:
    from pagedrun.config import given_settings

    return given_settings(engine.flags(), file=engine.config)


def _known(url: str, record: running.Running | None) -> Address:
    from pagedrun.remote import Address

    key = os.environ.get("PAGEDRUN_API_KEY", "").strip()
    if record is None:
        return Address(url=url, key=key)
    return Address(url=url, key=key, secret=record.secret, pid=record.pid)


def _address(text: str) -> str:
    """An address as it is typed: 127.0.0.1:7243, http://127.0.0.1:7243/v1. Raises UsageError."""
    from urllib.parse import urlsplit

    url = text.strip() if "://" in text else f"http://{text.strip()}"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and (parts.port or 1) > 0
        usable = usable and bool(parts.hostname) and not str(parts.hostname).isdecimal()  # which would be a port
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(f"--server {text!r} is no address", hint="for example --server http://127.0.0.1:7243")
    return url.rstrip("/").removesuffix("/v1")
