"""Answer REST: sweeps are submitted, listed, stopped and gone on with by JSON over HTTP."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse
from pydantic import BaseModel, ConfigDict
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rltune.errors import RltuneError
from rltune.service.access import READING, Access, Refusal
from rltune.service.desk import Desk
from rltune.service.submissions import UnknownSubmissionError

API = "/api/"
NEXT = "X-Next"  # of a log: where its next part begins
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Asked(BaseModel):
    """What is submitted."""

    model_config = ConfigDict(extra="forbid")
    overrides: list[str] = []
    name: str | None = None
    group: str | None = None


def make_app(desk: Desk, access: Access) -> FastAPI:
    """Make the application that answers REST; `rltune.service.page` adds the page.

    Args:
        desk: Does what is asked for.
        access: Who may ask.
    """
    app = FastAPI(title="rltune", docs_url=None, redoc_url=None, openapi_url=f"{API}openapi.json")
    app.include_router(make_router(desk))
    app.add_middleware(Guard, access=access)
    app.add_exception_handler(RltuneError, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    return app


def make_router(desk: Desk) -> APIRouter:
    """Make the routes of REST."""
    router = APIRouter(prefix="/api")

    @router.get("/health")
    def health() -> dict[str, str]:
        return {"rltune": "well"}

    @router.get("/sweeps")
    def list_sweeps(group: str | None = None) -> list[dict[str, Any]]:
        return [one for one in desk.list() if group is None or one["group"] == group]

    @router.post("/sweeps", status_code=201)
    def submit(asked: Asked) -> dict[str, Any]:
        return desk.submit(asked.overrides, asked.name, asked.group)

    @router.get("/sweeps/{name}")
    def show(name: str) -> dict[str, Any]:
        return desk.show(name)

    @router.get("/sweeps/{name}/logs")
    def logs(name: str, start: int = 0) -> Response:
        desk.submissions.get(name)
        text, after = desk.folder.read_log(name, start)
        return PlainTextResponse(text, headers={NEXT: str(after)})

    @router.post("/sweeps/{name}/{verb}")
    def act(name: str, verb: str, facts: dict[str, Any] | None = None) -> dict[str, Any]:
        return desk.act(verb, name, facts or {})

    return router


def status_of(error: RltuneError) -> int:
    """Return the status of HTTP that goes with an error."""
    if isinstance(error, UnknownSubmissionError):
        return 404
    return 422


def _answer_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RltuneError)
    return _spell(status_of(error), error.what, error.allowed, error.fix)


def _answer_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
    allowed = 'JSON such as {"overrides": ["algo=ppo", "env=cartpole"], "name": null, "group": null}'
    return _spell(422, f"{where}: {first['msg']}", allowed, "see docs/service.md")


def _spell(status: int, what: str, allowed: str, fix: str) -> Response:
    return JSONResponse({"error": what, "allowed": allowed, "try": fix}, status)


class Guard:
    """Lets a request through, or answers why not; it adds what keeps a browser from being led astray."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message["headers"]}
                added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(one for one in added if one[0] not in known)]
            await send(message)

        refusal = self._access.refuse(scope["method"], scope["path"], headers)
        answer = self._app if refusal is None else _answer_refusal(refusal, scope)
        await answer(scope, receive, send_guarded)


def _answer_refusal(refusal: Refusal, scope: Scope) -> Response:
    if refusal.status == 401 and scope["method"] in READING and not scope["path"].startswith(API):
        return RedirectResponse("/login", 303)
    return _spell(refusal.status, refusal.what, "who has the token, from the service's own page", refusal.fix)
