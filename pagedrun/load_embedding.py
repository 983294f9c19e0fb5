"""From a file to a running `EmbeddingService`."""

from __future__ import annotations

from pathlib import Path

from pagedrun.config import EngineConfig
from pagedrun.embedding import EmbeddingService
from pagedrun.errors import ModelError, ModelFileError
from pagedrun.gguf_file import is_embedding, read_facts, why_no_text
from pagedrun.native.embedder import Embedder
from pagedrun.native.library import load
from pagedrun.native.model import OnBytes


def makes_embeddings(path: Path) -> bool:
    """Whether the file is a model for embeddings; False for one that cannot be read, which loading explains."""
    try:
        return is_embedding(read_facts(path))
    except ModelFileError:
        return False


def load_embedding(
    path: Path, config: EngineConfig, *, on_progress: OnBytes | None = None, verbose: bool = False
) -> EmbeddingService:
    """Load a model for embeddings and start its thread. No memory is taken for conversations.

    on_progress gets (bytes loaded, bytes in all). verbose shows llama.cpp's log on stderr. Raises ModelError (another
    kind of file), ModelFileError, NotEnoughMemoryError, RuntimeLibraryError and UsageError (a setting).
    """
    facts = read_facts(path)
    if not is_embedding(facts):
        what = why_no_text(facts) or "a model that generates text"
        raise ModelError(f"{path.name} makes no embeddings: it is {what}", hint="what else is here: pagedrun list")
    library = load()
    library.log.verbose = verbose
    return EmbeddingService(Embedder(library, facts, config, on_progress))
