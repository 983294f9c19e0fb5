"""A server as an `Answerer`: its engine over HTTP, with the model's vocabulary and templates in this process.

address   where a server is, what it answers to a question, and how what it refuses is said
engine    what a server has under a name
service   requests and their events
asking    one of them
keeper    named sessions, which the server's engine saves and restores
"""

from __future__ import annotations

from pagedrun.remote.address import Address, KeyNeededError, get
from pagedrun.remote.engine import RemoteEngine, connect
from pagedrun.remote.service import RemoteService

__all__ = ["Address", "KeyNeededError", "RemoteEngine", "RemoteService", "connect", "get"]
