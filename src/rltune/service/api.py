"""The REST API: submit, list, stop and resume sweeps by JSON over HTTP."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, cast
from urllib.parse import quote

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from rltune.errors import (
    ABSENT,
    ConfigError,
    PolicyError,
    RltuneError,
    StudyError,
    UnavailableError,
    UnexpectedError,
    choices,
    clean_text,
    describe_exception,
)
from rltune.service.access import HEALTH, LOGIN, METRICS, OPENAPI, READING, Access, AccessError
from rltune.service.admission import RECEIVE, Admission
from rltune.service.client import MARK
from rltune.service.descriptions import describe_event
from rltune.service.documents import SweepResult
from rltune.service.metrics import CONTENT_TYPE, write_metrics
from rltune.service.models import (
    CheckBody,
    CheckDescription,
    ComparisonDescription,
    EnqueueBody,
    EventDescription,
    Refusal,
    ResumeBody,
    RetryBody,
    SubmitBody,
    SweepDescription,
)
from rltune.service.submissions import STATES, UnknownSubmissionError
from rltune.service.sweep_service import SweepService
from rltune.views.description import describe
from rltune.views.html import render_page
from rltune.views.tables import show_sweep

logger = logging.getLogger(__name__)
API = "/api/"
StateName = Literal["queued", "running", "complete", "failed", "interrupted", "refused"]
TRY = f"see docs/service.md, or {OPENAPI}"
NEXT = "X-Next"  # The response header with the byte at which the next request for a sweep's log should start.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    MARK: "service",
}
REFUSALS = {  # The HTTP statuses of refused requests, and what they mean.
    400: "The host is not one of the service's, or the body is not JSON.",
    401: "The token is missing or wrong.",
    403: "A browser sent the request from the page of another site.",
    404: "There is no such sweep.",
    409: "The sweep's state does not allow it.",
    413: "The body is too long.",
    422: "A value is wrong.",
    503: "Something that the request needs does not work at the moment.",
}
CREATED = {"headers": {"Location": {"schema": {"type": "string"}}}}
BYTES = "application/octet-stream"  # Generators of clients know it, and not application/zip.
ARCHIVE: dict[str, Any] = {"content": {BYTES: {"schema": {"type": "string", "format": "binary"}}}}
LOG = {"content": {"text/plain": {}}, "headers": {NEXT: {"schema": {"type": "string"}}}}


def make_app(service: SweepService, access: Access, admission: Admission) -> FastAPI:
    """Make the FastAPI application of the REST API; `rltune.service.page` adds the web page.

    Args:
        service: Carries out the requests.
        access: Decides who may send requests.
        admission: Runs the requests that check settings.
    """
    app = FastAPI(
        title="rltune",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(access.check)],
        generate_unique_id_function=lambda route: route.name,
    )
    app.include_router(make_router(service, admission))
    # The login page needs these files, so they are served without a token.
    app.mount("/static", StaticFiles(packages=[("rltune.service", "static")]))
    app.add_api_route(OPENAPI, app.openapi, include_in_schema=False)
    app.add_api_route(HEALTH, respond_healthy, include_in_schema=False)
    app.add_api_route(METRICS, lambda: respond_metrics(service), include_in_schema=False)
    access.protect(app)
    app.middleware("http")(add_headers)
    app.add_middleware(prepare_request)
    for kind in (RltuneError, RequestValidationError, HTTPException, DBAPIError, PoolTimeoutError):
        app.add_exception_handler(kind, respond_to_error)
    return app


async def respond_healthy() -> dict[str, str]:
    """Say that the service responds; a probe needs no token, and is answered while all threads are busy."""
    return {"rltune": "well"}


def respond_metrics(service: SweepService) -> Response:
    """Respond with the metrics of the service for Prometheus."""
    return Response(write_metrics(service.submissions, service.dispatcher.num_starts), media_type=CONTENT_TYPE)


def prepare_request(app: ASGIApp) -> ASGIApp:
    """Handle HEAD as GET, since the HTTP server leaves the body out, and keep what says that the client is gone."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        changed = {"method": "GET"} if scope.get("method") == "HEAD" else {}
        await app({**scope, **changed, RECEIVE: receive}, receive, send)

    return respond


async def add_headers(request: Request, respond: Callable[[Request], Awaitable[Response]]) -> Response:
    """Add security headers: pages load only the service's own files, and no page may show them in a frame."""
    try:
        response = await respond(request)
    except Exception as error:
        logger.exception("%s %s failed", request.method, clean_text(request.url.path))
        response = respond_to_error(request, error)
    if response.status_code in (401, 403):
        client = request.client.host if request.client else "?"
        path = clean_text(request.url.path)
        logger.warning("refused with %d: %s %s from %s", response.status_code, request.method, path, client)
    if response.status_code >= 400 and response.headers.get("Content-Type", "").startswith("text/plain"):
        # The response came from another middleware as plain text, and is replaced by JSON.
        text = b"".join([part async for part in cast(Any, response).body_iterator]).decode()
        response = respond_to_error(request, HTTPException(response.status_code, text))
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def make_router(service: SweepService, admission: Admission) -> APIRouter:
    """Make the routes of the REST API.

    Descriptions are returned as responses: FastAPI would check each against its model, of which OpenAPI is made. A list
    of hundreds of sweeps would take as long again, and a ledger of an earlier version may lack a key.
    """
    submitted, changed = declare(403, 409, 413) | {201: CREATED}, declare(403, 404, 409, 413)
    query_check = Depends(refuse_unknown_parameters)
    router = APIRouter(prefix="/api", responses=declare(400, 401, 422, 503), dependencies=[query_check])

    @router.get("/health")
    async def health() -> dict[str, str]:
        """Say that the service responds and accepts the token."""
        return await respond_healthy()

    @router.get("/sweeps", response_model=list[SweepDescription])
    def list_sweeps(
        group: str | None = None,
        state: Annotated[list[StateName] | None, Query()] = None,
        limit: Annotated[int | None, Query(ge=1)] = None,
        offset: Annotated[int, Query(ge=0)] = 0,
    ) -> Response:
        """Describe the sweeps of a group, or all: those that run, those that wait, then those that have ended.

        Those in some states are ``?state=running&state=queued``.
        """
        return JSONResponse(service.list(group, limit, offset, state or STATES))

    @router.post("/sweeps", status_code=201, response_model=SweepDescription, responses=submitted)
    async def submit(body: SubmitBody, request: Request) -> Response:
        """Put a sweep into the queue."""
        sweep = await admission.run(request, service.submit, body.overrides, body.name, body.group)
        return JSONResponse(sweep, 201, {"Location": f"{API}sweeps/{quote(sweep['name'])}"})

    @router.post("/checks", response_model=CheckDescription, responses=declare(403, 409, 413))
    async def check(body: CheckBody, request: Request) -> Response:
        """Check a sweep as far as a submission is checked, without submitting it, and say what it costs at most."""
        return JSONResponse(await admission.run(request, service.describe_check, body.overrides, body.name))

    @router.get("/comparison", response_model=ComparisonDescription, responses=declare(404, 409))
    def compare(sweeps: Annotated[list[str], Query(min_length=1)]) -> Response:
        """Compare the winners of sweeps on one environment with that of the first: ``?sweeps=first&sweeps=second``."""
        return JSONResponse(service.compare(sweeps).to_dict())

    @router.get("/sweeps/{name}", response_model=SweepDescription, responses=declare(404))
    def show(name: str) -> Response:
        """Describe a sweep: its state, its position in the queue, its progress and its best score."""
        return JSONResponse(service.show(name))

    @router.get("/sweeps/{name}/result", response_model=SweepResult, responses=declare(404, 409))
    def result(name: str) -> Response:
        """Return what ``rltune show json=true`` has of a sweep that has begun: how it ended, its winner and trials."""
        return JSONResponse(service.compute(name, describe))

    @router.get("/sweeps/{name}/table", response_class=PlainTextResponse, responses=declare(404, 409))
    def table(name: str) -> str:
        """Return what ``rltune show`` prints of a sweep that has begun."""
        text = io.StringIO()
        service.compute(name, lambda view: show_sweep(view, text))
        return text.getvalue()

    @router.get("/sweeps/{name}/policy", response_class=Response, responses=declare(404, 409) | {200: ARCHIVE})
    def policy(name: str, trial: Annotated[int | None, Query(ge=0)] = None) -> Response:
        """Return the policy of a trial, of the winner or of the best trial so far, as a ZIP archive of its folder."""
        service.require_begun(name)
        return Response(service.pack_policy(name, trial), media_type=BYTES)

    @router.get("/sweeps/{name}/events", responses=declare(404))
    def events(name: str) -> list[EventDescription]:
        """List the changes of a sweep's state with their reasons, the oldest first."""
        submission = service.submissions.get(name)
        return [describe_event(event) for event in service.submissions.list_events([submission.id])[submission.id]]

    @router.get("/sweeps/{name}/report", response_class=HTMLResponse, responses=declare(404, 409))
    def report(name: str) -> str:
        """Return the report of a sweep that has begun, as of now: one HTML page that needs no network."""
        return service.compute(name, render_page)

    @router.get("/sweeps/{name}/logs", response_class=Response, responses=declare(404) | {200: LOG})
    def logs(name: str, start: int = 0) -> Response:
        """Return a part of a sweep's log, from a byte on; the header X-Next has the byte of the next part."""
        service.submissions.get(name)
        text, next_start = service.folder.read_log(name, start)
        return PlainTextResponse(text, headers={NEXT: str(next_start)})

    @router.post("/sweeps/{name}/stop", response_model=SweepDescription, responses=declare(403, 404, 409))
    def stop(name: str) -> Response:
        """End a sweep cleanly, so that it can be resumed, or take it from the queue."""
        return JSONResponse(service.stop(name))

    @router.post("/sweeps/{name}/resume", response_model=SweepDescription, responses=changed)
    async def resume(name: str, request: Request, body: ResumeBody | None = None) -> Response:
        """Put a sweep that has ended at the queue's end, perhaps with other settings."""
        return JSONResponse(await admission.run(request, service.resume, name, body.overrides if body else []))

    @router.post("/sweeps/{name}/retry", response_model=SweepDescription, responses=changed)
    async def retry(name: str, request: Request, body: RetryBody | None = None) -> Response:
        """Try failed trials again, with their numbers and values, perhaps with other settings."""
        body = body or RetryBody()
        return JSONResponse(await admission.run(request, service.retry, name, body.trials, body.overrides))

    @router.post("/sweeps/{name}/enqueue", response_model=SweepDescription, responses=changed)
    def enqueue(name: str, body: EnqueueBody) -> Response:
        """Have a sweep try a configuration next."""
        return JSONResponse(service.enqueue(name, body.space))

    return router


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse unknown query parameters, because a misspelt filter would otherwise be ignored.

    Raises:
        ConfigError: Names the parameter.
    """
    allowed = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    for name, value in request.query_params.items():
        if name not in allowed:
            raise ConfigError(name, value, ": no such query parameter", choices(name, allowed), TRY)


def declare(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Declare for OpenAPI the HTTP statuses with which a request may be refused."""
    return {status: {"model": Refusal, "description": REFUSALS[status]} for status in statuses}


def respond_to_error(request: Request, error: Exception) -> Response:
    """Respond to an exception with the error's parts as JSON; a browser without login is sent to the login page."""
    path = request.url.path
    headers = dict(getattr(error, "headers", None) or {})
    if isinstance(error, RltuneError):
        status, refusal = status_of(error), error
    elif isinstance(error, RequestValidationError):
        status, refusal = 422, explain_invalid(request, error)
    elif isinstance(error, DBAPIError | PoolTimeoutError):
        # It is the queue's: its server restarts, or no connection is free meanwhile, or the disk is full. Errors of
        # ledgers are caught by their reader.
        problem = f"the queue's database does not work at the moment: {describe_exception(error)}"
        status, refusal = 503, UnavailableError(problem, "a database that answers", "the same again in a minute")
        logger.warning("%s %s: %s", request.method, clean_text(path), problem)
    elif isinstance(error, HTTPException):
        described = f"{request.method} {path}: {error.detail}"
        status, refusal = error.status_code, RltuneError(described, "a request that OpenAPI describes", TRY)
        if status == 405 and (methods := request.app.openapi()["paths"].get(request.scope["route"].path)):
            # Starlette's Allow header only names the methods of the path's first route, so the methods of all routes
            # are collected.
            headers["Allow"] = ", ".join(methods).upper()
    else:
        cause = describe_exception(error)
        status, refusal = 500, UnexpectedError(cause, "a fault of rltune", "see the output of the service")
    render_error = getattr(request.app.state, "render_error", None)
    if status == 401:
        if request.method in READING and not path.startswith((API, METRICS)):
            return RedirectResponse(LOGIN, 303)
        headers["WWW-Authenticate"] = "Bearer"
    if render_error and not path.startswith(API) and "text/html" in request.headers.get("Accept", ""):
        response: Response = render_error(refusal, status)
        return response
    return JSONResponse(refusal.to_dict(), status, headers)


def status_of(error: RltuneError) -> int:
    """Return the HTTP status for an error."""
    if isinstance(error, AccessError):
        return error.status
    statuses = {UnknownSubmissionError: 404, UnavailableError: 503, StudyError: 409, PolicyError: 409}
    return next((status for kind, status in statuses.items() if isinstance(error, kind)), 422)


def explain_invalid(request: Request, error: RequestValidationError) -> ConfigError:
    """Describe the first key of a request that is unknown, missing or of the wrong type, or where it is no JSON."""
    # A misspelt key is reported as unknown and the right one as missing, so the unknown one is explained first.
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    where, *keys = first["loc"]
    if first["type"] == "json_invalid":
        text, place = str(error.body), int(keys[0])
        line, column = text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place)
        problem = f"is no JSON: line {line}, column {column}: {first['ctx']['error']}"
        return ConfigError(where, text, problem, "JSON, with text and keys in double quotes", TRY)
    if isinstance(first["input"], bytes):  # FastAPI reads a body as JSON only if its header says so.
        kind, header = request.headers.get("Content-Type", ABSENT), "Content-Type: application/json"
        return ConfigError("Content-Type", kind, ": a body is JSON", header, f"curl -H '{header}' ..., or curl --json")
    # Of a parameter that may be repeated, the error has the place, too.
    key = ".".join(map(str, keys[:1] if where == "query" else keys)) or where
    value = None if first["type"] == "missing" else first["input"]
    if isinstance(value, list | dict):  # As JSON, it is printable whatever was sent.
        value = json.dumps(value, default=repr)
    return ConfigError(key, value, "is invalid", first["msg"], TRY)
