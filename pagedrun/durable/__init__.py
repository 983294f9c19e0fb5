"""Conversations that outlive the process: between the engine's pages and the files of `pagedrun.sessions`.

named       a session that somebody gave a name: who has it, its text, saving it
keeper      the engine's side: what is saved and restored, and when
loading     one conversation from its file
saving      one conversation into its file
contents    what of it is saved
stored      what is on disk, by its tokens
wishes      a named session to be saved, with less where there is no room
rates       whether to restore or to recompute

Each imports from those below it only. Files are never needed: whatever is wrong with one, it is computed again.
"""

from __future__ import annotations

from pagedrun.durable.keeper import Keeper, KeeperStats
from pagedrun.durable.named import Claim, Keeping, NamedSession, PagesGoneError
from pagedrun.durable.rates import Speeds

__all__ = ["Claim", "Keeper", "KeeperStats", "Keeping", "NamedSession", "PagesGoneError", "Speeds"]
