"""Where pagedrun keeps things on this machine (XDG folders), and where its own data files are.

    cache   sources, builds, built runtimes: can be deleted, `pagedrun setup` makes them again
    data    models
    state   chat history, what was used last
    config  config.toml and the user's own models.toml

Each can be moved with an environment variable: PAGEDRUN_CACHE, PAGEDRUN_MODELS, PAGEDRUN_STATE, PAGEDRUN_CONFIG.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

_PACKAGE = Path(__file__).resolve().parent


def _folder(variable: str, default: str) -> Path:
    value = os.environ.get(variable)
    return expanded(value).absolute() if value else Path(default)


def expanded(path: str | Path) -> Path:
    """A path as it was typed, with ~ as a shell has it: the ~NAME of nobody here is the name of a file."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def cache_dir() -> Path:
    """Sources, builds and built runtimes."""
    return _folder("PAGEDRUN_CACHE", platformdirs.user_cache_dir("pagedrun", appauthor=False))


def models_dir() -> Path:
    """Model files that pagedrun put here."""
    return _folder("PAGEDRUN_MODELS", platformdirs.user_data_dir("pagedrun", appauthor=False) + "/models")


def state_dir() -> Path:
    """Input history, saved chats, the model used last."""
    return _folder("PAGEDRUN_STATE", platformdirs.user_state_dir("pagedrun", appauthor=False))


def config_dir() -> Path:
    """The user's config.toml and models.toml."""
    return _folder("PAGEDRUN_CONFIG", platformdirs.user_config_dir("pagedrun", appauthor=False))


def data_file(name: str) -> Path:
    """A file or folder shipped with pagedrun (`patches`, `models.toml`): in the wheel, or in the checkout."""
    packaged = _PACKAGE / "data" / name
    return packaged if packaged.exists() else _PACKAGE.parent / name


def spill_dir() -> Path:
    """Where the file of idle pages is made that RAM has no room for."""
    return state_dir() / "spill"


def sessions_dir() -> Path:
    """Conversations that outlive the process: named ones, and automatic entries."""
    return state_dir() / "sessions"


def responses_dir() -> Path:
    """What `previous_response_id` of a server goes on from."""
    return state_dir() / "responses"
