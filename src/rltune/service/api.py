"""Answer REST: sweeps are submitted, listed, stopped and gone on with by JSON over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse
from pydantic import BaseModel, ConfigDict

from rltune.errors import RltuneError
from rltune.service.access import READING, Access, AccessError
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
    app = FastAPI(title="rltune", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(access.check)])
    app.include_router(make_router(desk))
    app.add_api_route(f"{API}openapi.json", app.openapi, include_in_schema=False)
    access.protect(app)
    app.middleware("http")(add_headers)
    app.add_exception_handler(RltuneError, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    return app


async def add_headers(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    """Add the headers that keep a browser from loading or framing anything that is not the service's own."""
    response = await answer(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


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
    if isinstance(error, AccessError):
        return error.status
    return 404 if isinstance(error, UnknownSubmissionError) else 422


def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RltuneError)
    status, path = status_of(error), request.url.path
    if status == 401 and request.method in READING and not path.startswith(API):
        return RedirectResponse("/login", 303)
    return _spell(status, error.what, error.allowed, error.fix)


def _answer_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
    allowed = 'JSON such as {"overrides": ["algo=ppo", "env=cartpole"], "name": null, "group": null}'
    return _spell(422, f"{where}: {first['msg']}", allowed, "see docs/service.md")


def _spell(status: int, what: str, allowed: str, fix: str) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": what, "allowed": allowed, "try": fix}, status, headers)
