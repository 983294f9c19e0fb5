"""Model files: found on this machine, brought from a hub, checked, listed, removed.

reference   what the user typed: a name, a path, hf:, ollama:, a URL
quants      quantisations by the names of files
locate      where a model is on this machine
places      other programs' folders: the Hugging Face cache, LM Studio, Ollama
library     everything that is here; last use, removal, verification
record      what is remembered about a file in the models folder: its source, its checksum
remote      what a hub has: files, sizes, checksums; search
transfer    one file over HTTP, resumed and verified
package     one file out of a Python package
pull        from what the user typed to verified files in the models folder
"""

from __future__ import annotations

from pagedrun.hub.locate import LocatedModel, download_command, fetch_default_model, is_default, locate, remember

__all__ = ["LocatedModel", "download_command", "fetch_default_model", "is_default", "locate", "remember"]
