"""Models on this machine, as `pagedrun serve` loads them: at its start, when somebody asks, and after they had left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagedrun import hub
from pagedrun.cli import generate
from pagedrun.errors import EngineError, NotEnoughMemoryError, PagedrunError, UsageError
from pagedrun.hub import library
from pagedrun.load_embedding import makes_embeddings
from pagedrun.server.embeddings import EmbeddingServing
from pagedrun.server.serving import Kind, Loaded, ServeSettings, Serving

if TYPE_CHECKING:
    from pagedrun.cli.options import EngineOptions, TemplateOptions
    from pagedrun.sharing import SharedMemory


@dataclass(frozen=True)
class Loader:
    """How models of this server are loaded. template_text: replaces the model's own."""

    memory: SharedMemory
    engine: EngineOptions
    template: TemplateOptions
    template_text: str | None = None

    def load(
        self, located: hub.LocatedModel, settings: ServeSettings, beside: Sequence[Loaded], given_up: Callable[[], bool]
    ) -> Loaded:
        """A model, for text or for embeddings, in what others leave. Raises as `generate.open_model`."""
        with generate.loading(located) as on_progress:

            def on_bytes(done: int, total: int) -> None:
                if given_up():
                    raise EngineError("the server is stopping")
                on_progress(done, total)

            share = self.memory.share(one.service.holds for one in beside)
            if share is None:
                raise NotEnoughMemoryError("the models that are loaded leave no room")
            if makes_embeddings(located.path):
                vectors = generate.load_vectors(located, share.config, self.engine, on_bytes)
                return EmbeddingServing(vectors, settings, share.config)
            args = (self.engine, self.template, self.template_text)
            service = generate.load_text(located, share, *args, on_bytes)
        generate.tell_of_room(share.config, service)
        return Serving(service, settings, share.config)


class LocalSource:
    """One model. See `pagedrun.server.served.Source`."""

    def __init__(self, located: hub.LocatedModel, settings: ServeSettings, loader: Loader) -> None:
        self.located = located
        self.settings = settings
        self._loader = loader

    @property
    def about(self) -> Mapping[str, Any]:
        """The file's size; nothing of one that has gone."""
        try:
            return {"size": sum(path.stat().st_size for path in library.find(self.located.name).paths)}
        except (OSError, PagedrunError):
            return {}

    @property
    def kind(self) -> Kind | None:
        """What it is for; None for one that has gone, or is none."""
        return _kind_of(self.located.path)

    def fits(self, beside: Sequence[Loaded]) -> bool:
        """Whether there is room for it beside these."""
        return self._loader.memory.fits(self.located.path, [one.service.holds for one in beside])

    def load(self, beside: Sequence[Loaded], given_up: Callable[[], bool]) -> Loaded:
        """Load it."""
        return self._loader.load(self.located, self.settings, beside, given_up)


class InstalledModels:
    """What `pagedrun list` shows, by the names that it shows, as far as it can be served.

    how: the settings of one, by where it is. named: those that are served under other names too.
    """

    def __init__(
        self, how: Callable[[hub.LocatedModel], ServeSettings], loader: Loader, named: Sequence[LocalSource]
    ) -> None:
        self._how = how
        self._loader = loader
        self._named = {source.located.path: source for source in named}

    def kinds(self) -> Mapping[str, Kind]:
        """Names of those that were not named, and what each is for."""
        here = [entry for entry in library.entries() if entry.paths[0] not in self._named]
        return {entry.name: kind for entry in here if (kind := _kind_of(entry.paths[0])) is not None}

    def source(self, name: str) -> LocalSource | None:
        """The model of that name; paths and what could be fetched are no names."""
        for entry in library.entries():
            names = {entry.name, *((entry.spec.name,) if entry.spec else ())}
            if name in names and _kind_of(entry.paths[0]) is not None:
                located = hub.locate(entry.name)
                settings = replace(self._how(located), names=(entry.name,))
                return self._named.get(located.path) or LocalSource(located, settings, self._loader)
        return None


def check_names(sources: Sequence[LocalSource]) -> None:
    """Raise UsageError where two models would have one name."""
    seen: dict[str, LocalSource] = {}
    for source in sources:
        for name in source.settings.names:
            if (other := seen.setdefault(name, source)) is not source:
                both = f"{other.located.path} and {source.located.path}"
                raise UsageError(f"{both} would both be called {name!r}", hint="give the file of one another name")


def _kind_of(path: Path) -> Kind | None:
    """What a model is for; None for one that cannot be served."""
    try:
        status = path.stat()
    except OSError:
        return None
    return _kind(path, status.st_size, status.st_mtime_ns)


@lru_cache(1000)
def _kind(path: Path, n_bytes: int, changed: int) -> Kind | None:
    """n_bytes, changed: of the file that the answer is for."""
    from pagedrun.gguf_file import is_embedding, read_facts, why_no_text

    try:
        facts = read_facts(path)
    except PagedrunError:
        return None
    if is_embedding(facts):
        return "embedding"
    return None if why_no_text(facts) else "text"
