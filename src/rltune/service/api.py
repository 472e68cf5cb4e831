"""Serve the REST interface: submit, list, stop and resume sweeps by JSON over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict

from rltune.errors import ConfigError, RltuneError
from rltune.service.access import LOGIN, READING, Access, AccessError
from rltune.service.submissions import UnknownSubmissionError
from rltune.service.sweep_service import SweepService

API = "/api/"
NEXT = "X-Next"  # This header of a part of a log has the byte at which the next part begins.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class SubmissionBody(BaseModel):
    """The body of a request that submits a sweep."""

    model_config = ConfigDict(extra="forbid")
    overrides: list[str] = []
    name: str | None = None
    group: str | None = None


def make_app(service: SweepService, access: Access) -> FastAPI:
    """Make the application that serves REST; `rltune.service.page` adds the page.

    Args:
        service: Carries out the requests.
        access: Decides who may send requests.
    """
    app = FastAPI(title="rltune", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(access.check)])
    app.include_router(make_router(service))
    # The login needs these files, so they are served without a token.
    app.mount("/static", StaticFiles(packages=[("rltune.service", "static")]))
    app.add_api_route(f"{API}openapi.json", app.openapi, include_in_schema=False)
    access.protect(app)
    app.middleware("http")(add_headers)
    app.add_exception_handler(RltuneError, _respond_to_error)
    app.add_exception_handler(RequestValidationError, _respond_to_invalid_body)
    return app


async def add_headers(request: Request, respond: Callable[[Request], Awaitable[Response]]) -> Response:
    """Add the headers that keep a browser from loading or framing anything that is not the service's own."""
    response = await respond(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def make_router(service: SweepService) -> APIRouter:
    """Make the routes of REST."""
    router = APIRouter(prefix="/api")

    @router.get("/health")
    def health() -> dict[str, str]:
        return {"rltune": "well"}

    @router.get("/sweeps")
    def list_sweeps(group: str | None = None) -> list[dict[str, Any]]:
        return [sweep for sweep in service.list() if group is None or sweep["group"] == group]

    @router.post("/sweeps", status_code=201)
    def submit(body: SubmissionBody) -> dict[str, Any]:
        return service.submit(body.overrides, body.name, body.group)

    @router.get("/sweeps/{name}")
    def show(name: str) -> dict[str, Any]:
        return service.show(name)

    @router.get("/sweeps/{name}/logs")
    def logs(name: str, start: int = 0) -> Response:
        service.submissions.get(name)
        text, next_start = service.folder.read_log(name, start)
        return PlainTextResponse(text, headers={NEXT: str(next_start)})

    @router.post("/sweeps/{name}/{verb}")
    def act(name: str, verb: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
        return service.act(verb, name, arguments or {})

    return router


def status_of(error: RltuneError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, AccessError):
        return error.status
    return 404 if isinstance(error, UnknownSubmissionError) else 422


def _respond_to_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RltuneError)
    status, path = status_of(error), request.url.path
    if status == 401 and request.method in READING and not path.startswith(API):
        return RedirectResponse(LOGIN, 303)
    return _make_error_response(status, error)


def _respond_to_invalid_body(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
    allowed = 'JSON such as {"overrides": ["algo=ppo", "env=cartpole"], "name": null, "group": null}'
    return _make_error_response(422, ConfigError(f"{field}: {first['msg']}", allowed, "see docs/service.md"))


def _make_error_response(status: int, error: RltuneError) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse(error.to_dict(), status, headers)
