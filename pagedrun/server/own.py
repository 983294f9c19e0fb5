"""The routes of `chat` and `complete` of the same version, whose answers a server computes.

GET  /v1/pagedrun/engine          what a model is, and how it is loaded
POST /v1/pagedrun/generate        tokens in, a line of JSON for each event out
POST /v1/pagedrun/cancel          end one of these within a step; its stream still says how it ended
POST /v1/pagedrun/sessions/use    prompts may go on from the pages of a session of the server's own user
POST /v1/pagedrun/sessions/save   save what was computed of these tokens, and a text, as such a session
"""

from __future__ import annotations

import hmac

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pagedrun.running import OWNER
from pagedrun.server import direct, kept
from pagedrun.server.direct import SOON_S, CancelRequest, Direct, GenerateRequest, Generating
from pagedrun.server.errors import ApiError
from pagedrun.server.http import asked_of
from pagedrun.server.kept import SaveRequest, UseRequest
from pagedrun.server.models import Models
from pagedrun.server.serving import Serving, of_kind


class Own:
    """Endpoints over a server's models."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._under: dict[str, Direct] = {}

    async def engine(self, request: Request, model: str | None = None) -> Response:
        """A model and how it is loaded, for clients that have its file as well."""
        serving = await self._text(model)
        if self._is_owner(request):
            self._models.expect_more(SOON_S)
        return JSONResponse(direct.engine(serving))

    async def generate(self, request: Request) -> Response:
        """An answer to tokens, as lines of JSON: for `pagedrun chat` and `pagedrun complete` of the same version."""
        asked = await asked_of(self._models, request, GenerateRequest)
        owner = self._is_owner(request)
        asked.check(owner=owner)
        return Generating(self._models, asked, self._under, saves=owner)

    async def cancel(self, request: Request) -> Response:
        """End an answer of /v1/pagedrun/generate."""
        return JSONResponse(direct.cancel(await asked_of(self._models, request, CancelRequest), self._under))

    async def use_session(self, request: Request) -> Response:
        """Go on from a session of the server's own user."""
        self._refuse_others(request)
        asked = await asked_of(self._models, request, UseRequest)
        serving = await self._text(asked.model)
        self._models.expect_more(SOON_S)
        return await kept.use(serving, asked)

    async def save_session(self, request: Request) -> Response:
        """Save a session of the server's own user."""
        self._refuse_others(request)
        asked = await asked_of(self._models, request, SaveRequest)
        return await kept.save(await self._text(asked.model), asked)

    async def _text(self, name: str | None) -> Serving:
        return of_kind(await self._models.serving(name), Serving)

    def _is_owner(self, request: Request) -> bool:
        """Whether the user asks whose server this is: nobody else can read its record."""
        secret = self._models.settings.secret
        return bool(secret) and hmac.compare_digest(request.headers.get(OWNER, "").encode(), secret.encode())

    def _refuse_others(self, request: Request) -> None:
        if not self._is_owner(request):
            raise ApiError(403, "sessions are for this server's own user", code="owner_only")
