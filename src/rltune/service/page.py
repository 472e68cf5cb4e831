"""Serve the page: lists and sweeps are rendered here, forms post, and a script reloads a part of a page."""

from __future__ import annotations

import importlib.resources
import json
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib.parse import parse_qs, quote

import yaml
from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from rltune.compose.form import list_groups, make_form
from rltune.compose.overrides import spell_value
from rltune.config.uris import redact_address, resolve_uri
from rltune.errors import ConfigError, RltuneError, choices
from rltune.formatting import format_count, format_interval, format_objective, format_params
from rltune.service.access import LOGGED_IN, Access
from rltune.service.checking import RESERVED
from rltune.service.submissions import ENDED
from rltune.service.sweep_service import VERBS, SweepService

NO_SETTINGS = ("name", "group", "overrides")  # The form's fields that are not spelled as a setting.
HIDDEN = ("name", *RESERVED)  # The settings that have a field of another kind, or that the service chooses.
FIRST_TRIALS = 20  # A sweep's page shows so many trials; the others are a click away.
LOG_BYTES = 6000
STATIC = {"style.css": "text/css", "page.js": "text/javascript"}
# A report is a page with its own script, which may run, but not with the rights of the service's page.
REPORT_POLICY = "sandbox allow-scripts allow-popups; frame-ancestors 'none'"


def find_tracking_server() -> str | None:
    """Return the address of the MLflow server that sweeps of this folder report to; None for a local store."""
    store = resolve_uri(None)
    return redact_address(store) if store.startswith(("http://", "https://")) else None


def make_router(service: SweepService, access: Access) -> APIRouter:
    """Make the routes of the page.

    Args:
        service: Carries out the requests.
        access: Checks the token.
    """
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    # Templates are not reloaded, because after an upgrade they would not fit the code that runs.
    loader = PackageLoader("rltune.service")
    templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, auto_reload=False)
    templates.filters |= {"count": format_count, "params": format_params, "score": format_objective}
    templates.filters["interval"] = format_interval

    def render(template: str, status: int = 200, **values: Any) -> HTMLResponse:
        defaults: dict[str, Any] = {"mlflow": find_tracking_server(), "error": None, "part": False}
        return HTMLResponse(templates.get_template(template).render(**defaults | values), status)

    def show_list(part: bool = False, error: RltuneError | None = None) -> Response:
        values = {"sweeps": service.list(), "part": part, "error": error, "ended": ENDED}
        return render("list.html", 422 if error else 200, **values)

    def show_sweep(
        name: str, part: bool = False, error: RltuneError | None = None, given: dict[str, str] | None = None
    ) -> Response:
        log = service.folder.read_log(name, -LOG_BYTES)[0]
        values = {"sweep": service.show(name), "log": log, "part": part, "error": error, "ended": ENDED}
        values |= {"given": given or {}, "first_trials": FIRST_TRIALS}
        details = service.views.show(service.submissions.get(name))
        return render("sweep.html", 422 if error else 200, **values, **details)

    def show_form(given: Mapping[str, str] | None = None, error: RltuneError | None = None) -> Response:
        given = given or {}
        try:
            form = make_form(spell_form(given, list_groups()))
        except RltuneError:  # The choice of files is what is wrong; the form shows the usual defaults beside the error.
            form = make_form()
        values = {"form": form, "hidden": HIDDEN, "wrong": find_wrong(error, given, form.keys) if error else ""}
        return render("submit.html", 422 if error else 200, **values, given=given, error=error)

    @router.get("/")
    def index(part: bool = False) -> Response:
        return show_list(part)

    @router.get("/sweeps/{name}")
    def sweep(name: str, part: bool = False) -> Response:
        return show_sweep(name, part)

    @router.get("/submit")
    def submit_form(request: Request) -> Response:  # The script sends choices of files, to show their defaults.
        return show_form({**request.query_params})

    @router.post("/submit")
    async def submit(request: Request) -> Response:
        given = await read_form(request)
        try:
            overrides, name, group = spell_form(given), given.get("name") or None, given.get("group") or None
            submitted = await run_in_threadpool(service.submit, overrides, name, group)
        except RltuneError as error:
            return await run_in_threadpool(show_form, given, error)
        return RedirectResponse(f"/sweeps/{quote(submitted['name'])}", 303)

    @router.post("/sweeps/{name}/{verb}")
    async def act(name: str, verb: str, request: Request) -> Response:
        given = await read_form(request)
        try:
            if verb not in VERBS:
                raise ConfigError(f"{verb}: no such verb", choices(verb, VERBS), "a button of the page")
            await run_in_threadpool(service.act, verb, name, read_arguments(verb, given))
        except RltuneError as error:
            return await run_in_threadpool(show_sweep, name, False, error, given)
        return RedirectResponse("/" if given.get("from") == "list" else f"/sweeps/{quote(name)}", 303)

    @router.get("/sweeps/{name}/{verb}")
    def go_back(name: str, verb: str) -> Response:  # A browser that reloads a refused request sends it as GET.
        return RedirectResponse(f"/sweeps/{quote(name)}", 303)

    @router.get("/sweeps/{name}/report/{file}")
    def report(name: str, file: str) -> Response:
        service.submissions.get(name)
        folder = service.folder.sweeps / name / "report"
        if file not in {path.name for path in folder.glob("[!.]*")}:
            raise ConfigError(f"{file}: the report has no such file", "index.html", f"/sweeps/{name}")
        return FileResponse(folder / file, headers={"Content-Security-Policy": REPORT_POLICY})

    @router.get("/login")
    def login_form() -> Response:
        return render("login.html")

    @router.post("/login")
    async def login(request: Request) -> Response:
        given = await read_form(request)
        if not access.is_token(given.get("token", "")):
            wrong = ConfigError("this is not the service's token", "what rltune serve printed", "copy it from there")
            return render("login.html", 401, error=wrong)
        request.session[LOGGED_IN] = True
        return RedirectResponse("/", 303)

    for file, media_type in STATIC.items():
        router.add_api_route(f"/{file}", _make_static(file, media_type))
    return router


def _make_static(file: str, media_type: str) -> Callable[[], Response]:
    content = importlib.resources.files("rltune.service").joinpath("templates", file).read_text(encoding="utf-8")

    def respond() -> Response:
        return Response(content, media_type=media_type)

    return respond


async def read_form(request: Request) -> dict[str, str]:
    """Read a form that a browser has posted."""
    body = (await request.body()).decode(errors="replace")
    return {name: values[-1] for name, values in parse_qs(body, keep_blank_values=True).items()}


def spell_form(given: Mapping[str, str], keys: Collection[str] | None = None) -> list[str]:
    """Spell the filled fields of the form as overrides; an empty field keeps its default.

    Args:
        given: The texts of the form's fields, by name.
        keys: The fields to spell; None for all.

    Raises:
        ConfigError: The free settings cannot be read.
    """
    typed = {key: text.strip() for key, text in given.items() if text.strip() and key not in NO_SETTINGS}
    overrides = [f"{key}={_spell_typed(key, text)}" for key, text in typed.items() if keys is None or key in keys]
    try:
        return overrides + (shlex.split(given.get("overrides", "")) if keys is None else [])
    except ValueError as error:
        raise ConfigError(
            f"overrides={error}", "key=value, one after the other, quoted as for a shell", "space.lr=3e-4 seed=1"
        ) from None


def _spell_typed(key: str, text: str) -> str:
    """Spell a field's text as Hydra's grammar requires: all but plain words and numbers is quoted."""
    return text if re.fullmatch(r"[\w.+-]+", text, re.ASCII) else spell_value(key, text)


def find_wrong(error: RltuneError, given: Mapping[str, str], keys: Collection[str]) -> str:
    """Return the name of the field that an error is about; empty if it is about none."""
    if error.key in {*keys, *NO_SETTINGS} and f"{error.key}=" not in given.get("overrides", ""):
        return error.key
    return "overrides" if error.key else ""


def read_arguments(verb: str, given: dict[str, str]) -> dict[str, Any]:
    """Read the arguments of a verb from its form.

    Raises:
        ConfigError: It cannot be read.
    """
    if verb == "enqueue":
        values = {name.removeprefix("space."): text for name, text in given.items() if name.startswith("space.")}
        return {"space": {name: yaml.safe_load(_spell_number(text)) for name, text in values.items() if text.strip()}}
    if verb == "resume" and given.get("trials"):
        return {"overrides": [f"budget.trials={spell_value('budget.trials', _read_int(given['trials']))}"]}
    return {}


def _read_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"trials={text}", "a whole number", "trials=40") from None


def _spell_number(text: str) -> str:
    """Spell a number so that YAML reads a number: ``1e-3`` is a text there."""
    try:
        return json.dumps(float(text)) if "e" in text.lower() else text
    except ValueError:
        return text
