"""The registry: names people type -> where the file comes from, what it must hash to, how to sample.

`models.toml` ships with pagedrun; one of the same form in the config folder adds to it and overrides it.
The keys are explained at the top of the shipped file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Any

from pagedrun.errors import ModelNotFoundError, ParameterError, UsageError
from pagedrun.memory import BYTES_PER_ELEMENT
from pagedrun.paths import config_dir, data_file
from pagedrun.sampling import SamplingParams

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

FILE_NAME = "models.toml"
# What is known about one file, and not about another.
_OF_THE_FILE = ("title", "size", "sha256", "license", "context", "kv")
TASKS = ("generate", "embed")

_SOURCE = re.compile(r"pypi:[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+|hf:[\w.-]+/[\w.-]+(@[0-9a-f]{40})?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# No "/" and no ":": those mark paths and hf: references.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSpec:
    """What the KV cache of one sequence holds: `layers` with all its tokens, `heads` KV heads of `head_dim` elements.

    sliding_layers: layers that hold the last `window` tokens only.
    """

    layers: int
    heads: int
    head_dim: int
    sliding_layers: int = 0
    window: int = 0

    def bytes_per_token(self, kv_type: str) -> float:
        """Bytes that one more token takes, once the windows are full: K and V of all layers that keep it."""
        return self.layers * 2 * self.heads * self.head_dim * BYTES_PER_ELEMENT[kv_type]

    def bytes_of_windows(self, kv_type: str) -> float:
        """Bytes that the full windows of the sliding layers take, however long the sequence is."""
        return self.sliding_layers * self.window * 2 * self.heads * self.head_dim * BYTES_PER_ELEMENT[kv_type]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model of the registry.

    source: "pypi:PACKAGE==VERSION" or "hf:OWNER/REPO[@REVISION]"; file: the path inside it.
    size in bytes, context in tokens; None where not known.
    chat_template: replaces the one in the file; None keeps it.
    think: what to ask of the chat template when the user does not say; None leaves it to the template.
    sampling: recommended settings by mode: "" for any, "thinking", "plain".
    own: the user's file, where that says something about it.
    """

    name: str
    source: str
    file: str
    title: str = ""
    aliases: tuple[str, ...] = ()
    size: int | None = None
    sha256: str | None = None
    license: str | None = None
    context: int | None = None
    kv: KvSpec | None = None
    task: str = "generate"
    chat_template: str | None = None
    think: bool | None = None
    sampling: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    own: Path | None = None

    @property
    def file_name(self) -> str:
        """The name of the file on this machine."""
        return PurePosixPath(self.file).name

    def kv_bytes_per_token(self, kv_type: str) -> float | None:
        """Bytes of KV cache that one more token takes; None where not known."""
        return None if self.kv is None else self.kv.bytes_per_token(kv_type)

    def sampling_for(self, *, think: bool | None) -> dict[str, Any]:
        """The recommended settings, by the names of `SamplingParams`. `think` None is the model's `think`."""
        mode = self.think if think is None else think
        by_mode = {} if mode is None else self.sampling.get("thinking" if mode else "plain", {})
        return {**self.sampling.get("", {}), **by_mode}


@dataclass(frozen=True, slots=True)
class Catalog:
    """All models that have a name. `default` is the embedded one, for a first run."""

    models: Mapping[str, ModelSpec]
    default: str

    def get(self, name: str) -> ModelSpec | None:
        """The model of that name or alias, in any case; None when there is none."""
        key = name.lower()
        return self.models.get(key) or next((m for m in self.models.values() if key in m.aliases), None)

    def find(self, name: str) -> ModelSpec:
        """Like `get`, but raises ModelNotFoundError with close matches when there is none."""
        spec = self.get(name)
        if spec is None:
            raise ModelNotFoundError(f"there is no model named {name!r}", hint=self.suggest(name))
        return spec

    def suggest(self, name: str) -> str:
        """A sentence with the names closest to `name`, or all of them when none is close."""
        names = [*self.models, *(alias for m in self.models.values() for alias in m.aliases)]
        close = get_close_matches(name.lower(), names, n=3)
        return f"did you mean {' or '.join(close)}?" if close else f"known names: {', '.join(sorted(self.models))}"


def load_catalog() -> Catalog:
    """The shipped registry with the user's on top. Raises UsageError that names file and key."""
    shipped = data_file(FILE_NAME)
    document = _read(shipped)
    origins = dict.fromkeys(document["models"], shipped)
    users = config_dir() / FILE_NAME
    if users.exists():
        own = _read(users)
        _check_overrides(users, own["models"], document["models"])
        document["default"] = own.get("default", document.get("default"))
        for name, entry in own["models"].items():
            document["models"][name] = _overridden(document["models"].get(name, {}), entry)
            origins[name] = users
    models = {name: _spec(origins[name], name, entry) for name, entry in document["models"].items()}
    models = {name: replace(spec, own=users) if origins[name] == users else spec for name, spec in models.items()}
    catalog = Catalog(models, str(document.get("default", "")))
    _check_names(catalog, origins)
    if catalog.default not in models:
        raise UsageError(f"{users if users.exists() else shipped}: default: there is no model {catalog.default!r}")
    return catalog


def _read(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise UsageError(f"cannot read {path}: {e.strerror}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise UsageError(f"{path} is not valid TOML: {e}") from e
    for key in document.keys() - {"default", "models"}:
        raise UsageError(f"{path}: {key}: unknown key", hint="known: default, models")
    models = document.setdefault("models", {})
    if not isinstance(models, dict):
        raise UsageError(f"{path}: models: must be a table")
    for name, entry in models.items():
        if not isinstance(entry, dict):
            raise UsageError(f"{path}: models.{name}: must be a table")
        if not _NAME.fullmatch(name):
            raise UsageError(f"{path}: models.{name}: a name has lower-case letters, digits, '.', '-' and '_'")
    return document


def _overridden(shipped: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The user's keys on top of the shipped ones; for another file, what was known of the shipped one goes."""
    is_other = bool(own.keys() & {"source", "file"})
    return {**{k: v for k, v in shipped.items() if not (is_other and k in _OF_THE_FILE)}, **own}


def _check_overrides(path: Path, own: Mapping[str, Any], shipped: Mapping[str, Any]) -> None:
    """An entry under a shipped alias is neither a model of its own, nor found by the name that it overrides."""
    names = {alias: name for name, entry in shipped.items() for alias in entry.get("aliases", ())}
    for alias in own.keys() & names.keys():
        name = names[alias]
        raise UsageError(
            f"{path}: models.{alias}: {alias} is another name for {name}",
            hint=f'write [models."{name}"] to override it',
        )


def _spec(path: Path, name: str, entry: Mapping[str, Any]) -> ModelSpec:
    where = f"{path}: models.{name}"
    known = {f.name for f in fields(ModelSpec)} - {"name", "own"}
    for key, value in entry.items():
        if key not in known:
            raise UsageError(f"{where}.{key}: unknown key", hint=f"known: {', '.join(sorted(known))}")
        if problem := _problem(key, value):
            raise UsageError(f"{where}.{key}: {problem}, not {value!r}")
    for key in ("source", "file"):
        if key not in entry:
            raise UsageError(f"{where}: {key} is missing")
    values = dict(entry)
    values["aliases"] = tuple(values.get("aliases", ()))
    values["title"] = values.get("title") or name
    values["kv"] = _kv(f"{where}.kv", values["kv"]) if "kv" in values else None
    values["sampling"] = _sampling(where, values.get("sampling", {}))
    return ModelSpec(name=name, **values)


def _problem(key: str, value: Any) -> str | None:
    """What is wrong with the value of one key, as "must be ..."; None when nothing is."""
    is_text = isinstance(value, str) and bool(value)
    is_count = _is_count(value)
    checks = {
        "source": (is_text and bool(_SOURCE.fullmatch(value)), "pypi:PACKAGE==VERSION or hf:OWNER/REPO[@REVISION]"),
        "file": (is_text and _is_model_path(value), "the path of a .gguf file, without hidden folders"),
        "title": (is_text, "a text"),
        "license": (is_text, "a text"),
        "size": (is_count, "a number of bytes"),
        "context": (is_count, "a number of tokens"),
        "sha256": (is_text and bool(_SHA256.fullmatch(value)), "64 hexadecimal digits"),
        "chat_template": (is_text, "a template's text"),
        "think": (isinstance(value, bool), "true or false"),
        "task": (value in TASKS, f"one of {', '.join(TASKS)}"),
        "kv": (isinstance(value, dict), "a table"),
        "sampling": (isinstance(value, dict), "a table"),
        "aliases": (isinstance(value, list) and all(isinstance(a, str) for a in value), "a list of names"),
    }
    good, wanted = checks[key]
    return None if good else f"must be {wanted}"


def _is_model_path(value: str) -> bool:
    parts = value.split("/")
    return value.isprintable() and value.endswith(".gguf") and not any(p == "" or p.startswith(".") for p in parts)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _kv(where: str, table: Mapping[str, Any]) -> KvSpec:
    known = [f.name for f in fields(KvSpec)]
    for key, value in table.items():
        if key not in known:
            raise UsageError(f"{where}.{key}: unknown key", hint=f"known: {', '.join(known)}")
        if not _is_count(value):
            raise UsageError(f"{where}.{key}: must be a number above 0, not {value!r}")
    for key in ("layers", "heads", "head_dim"):
        if key not in table:
            raise UsageError(f"{where}: {key} is missing")
    if ("sliding_layers" in table) != ("window" in table):
        raise UsageError(f"{where}: sliding_layers and window belong together")
    return KvSpec(**table)


def _sampling(where: str, table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    modes: dict[str, dict[str, Any]] = {
        "": {k: v for k, v in table.items() if k not in {"thinking", "plain"}},
        **{mode: table[mode] for mode in ("thinking", "plain") if mode in table},
    }
    for mode, settings in modes.items():
        key = f"{where}.sampling" + (f".{mode}" if mode else "")
        if not isinstance(settings, dict):
            raise UsageError(f"{key}: must be a table")
        try:
            SamplingParams().override(**settings)
        except ParameterError as e:
            raise UsageError(f"{key}: {e.message}", hint=e.hint) from e
    return {mode: settings for mode, settings in modes.items() if settings}


def _check_names(catalog: Catalog, origins: Mapping[str, Path]) -> None:
    taken = set(catalog.models)
    for name, spec in catalog.models.items():
        for alias in spec.aliases:
            if alias in taken or not _NAME.fullmatch(alias):
                raise UsageError(f"{origins[name]}: models.{name}.aliases: {alias!r} is taken, or not a name")
            taken.add(alias)
