"""The web page: lists, sweeps and forms are rendered on the server, and a script reloads parts of them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import parse_qs, quote

import yaml
from anyio import to_thread
from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from rltune.compose.groups import find_options, list_groups
from rltune.config.uris import resolve_uri
from rltune.errors import ConfigError, RltuneError, choices
from rltune.formatting import TextTable, format_duration, format_objective
from rltune.service.access import LOGGED_IN, Access
from rltune.service.admission import Admission
from rltune.service.checking import describe_cost
from rltune.service.descriptions import has_report
from rltune.service.models import SweepDescription
from rltune.service.submissions import COMPLETE, ENDED, RUNNING, STATES
from rltune.service.sweep_service import VERBS, SweepService
from rltune.views.comparison import EXPLAINED
from rltune.views.html import FOLDER, PAGE, render_page
from rltune.views.page import Section

MAX_ROWS = 20  # A sweep's page shows at most this many rows of a table, and a link to the others.
LOG_BYTES = 6000
FIRST = ("algo", "env", "experiment")  # The groups that nearly every submission chooses; the form has them on top.
# A report has inline scripts. The sandbox lets them run, but not access the service with the user's session.
REPORT_POLICY = "sandbox allow-scripts allow-popups; frame-ancestors 'none'"


def find_tracking_server() -> str | None:
    """Return the address of the MLflow server that sweeps log to by default; None for a local store."""
    store = resolve_uri(None)
    return store if store.startswith(("http://", "https://")) else None


async def read_form(request: Request) -> dict[str, str]:
    """Read the fields of a form that a browser has posted."""
    body = (await request.body()).decode(errors="replace")
    return {name: values[-1] for name, values in parse_qs(body, keep_blank_values=True).items()}


Form = Annotated[dict[str, str], Depends(read_form)]


class Page:
    """The handlers of browser requests.

    Args:
        service: Carries out the requests.
        access: Checks the token.
        admission: Runs the requests that check settings.
    """

    def __init__(self, service: SweepService, access: Access, admission: Admission) -> None:
        self._service, self._access, self._admission = service, access, admission
        # The templates on disk may be newer than the running code after an upgrade, so they are not reloaded.
        loader = ChoiceLoader([PackageLoader("rltune.service"), PackageLoader("rltune.views")])
        self._templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, auto_reload=False)
        self._templates.filters |= {"score": format_objective, "duration": format_duration, "shell": shlex.join}

    def add_to(self, app: FastAPI) -> None:
        """Add the web page to the application of the REST API."""
        app.include_router(self.make_router())
        app.state.render_error = self.render_error

    def make_router(self) -> APIRouter:
        """Make the routes of the web page."""
        router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
        router.get("/")(self.show_list)
        router.get("/sweeps/{name}")(self.show_sweep)
        router.get("/sweeps/{name}/{verb}")(self.go_back)
        router.post("/sweeps/{name}/resume")(self.resume)
        router.post("/sweeps/{name}/{verb}")(self.act)
        router.get("/sweeps/{name}/report/{file}")(self.send_report)
        router.get("/submit")(self.show_form)
        router.post("/submit")(self.submit)
        router.post("/submit/cost")(self.estimate)
        router.get("/compare")(self.compare)
        router.get("/login")(self.show_login)
        router.post("/login")(self.log_in)
        return router

    def _render(self, template: str, error: RltuneError | None = None, status: int = 422, **values: Any) -> Response:
        """Render a Jinja2 template.

        Args:
            template: The template's file.
            error: What was wrong with the request; the page shows it.
            status: The status of the response if there is an error.
            values: What the template names.
        """
        defaults: dict[str, Any] = {"mlflow": find_tracking_server(), "error": error, "part": False, "here": ""}
        content = self._templates.get_template(template).render(**defaults | {"ended": ENDED} | values)
        return HTMLResponse(content, status if error else 200)

    def show_list(
        self, part: bool = False, plain: bool = False, search: str = "", state: str = "", group: str = ""
    ) -> Response:
        """Show the list of all sweeps; the page's script filters it, or this does for a browser without scripts."""
        chosen, words = ([state] if plain and state else STATES), search.lower().split() if plain else []

        def matches(sweep: SweepDescription) -> bool:
            text = " ".join([sweep["name"], sweep["reason"] or "", *sweep["overrides"]]).lower()
            return all(word in text for word in words)

        listed = self._service.list(group if plain and group else None, states=chosen)
        sweeps = [sweep for sweep in listed if matches(sweep)]
        return self._render("list.html", sweeps=sweeps, states=STATES, part=part, plain=plain, here="list")

    def show_sweep(self, name: str, part: bool = False) -> Response:
        """Show the page of one sweep."""
        return self._render_sweep(name, {}, part=part)

    def _render_sweep(
        self, name: str, given: Mapping[str, str], error: RltuneError | None = None, part: bool = False
    ) -> Response:
        details = self._service.descriptions.show(self._service.submissions, name)
        log, end = self._service.folder.read_log(name, -LOG_BYTES)
        details |= {"log": log.partition("\n")[2] if end > LOG_BYTES else log}  # Its end, from a whole line on.
        return self._render("sweep.html", error, part=part, given=given, max_rows=MAX_ROWS, **details)

    def act(self, name: str, verb: str, given: Form) -> Response:
        """Carry out the action of a button on a sweep's page, such as to stop the sweep."""
        try:
            if verb not in VERBS:
                raise RltuneError(f"{verb}: no such verb", choices(verb, VERBS), "a button of the page")
            getattr(self._service, verb)(name, **read_arguments(verb, given))
        except RltuneError as error:
            return self._render_sweep(name, given, error)
        return _redirect_back(name, given)

    async def resume(self, name: str, given: Form, request: Request) -> Response:
        """Resume a sweep, perhaps with more trials."""
        try:
            overrides = read_arguments("resume", given).get("overrides", [])
            await self._admission.run(request, self._service.resume, name, overrides)
        except RltuneError as error:
            return await to_thread.run_sync(self._render_sweep, name, given, error)
        return _redirect_back(name, given)

    def go_back(self, name: str, verb: str) -> Response:
        """Redirect to the sweep's page if a browser repeats a refused POST request as GET."""
        return RedirectResponse(f"/sweeps/{quote(name)}", 303)

    def send_report(self, name: str, file: str) -> Response:
        """Send a file of a sweep's report; if the sweep runs or has no report, render the page now."""
        submission, folder = self._service.submissions.get(name), self._service.folder.sweeps / name
        headers = {"Content-Security-Policy": REPORT_POLICY}
        if file == PAGE and (submission.state == RUNNING or not has_report(folder)):
            return HTMLResponse(self._service.compute(name, render_page), headers=headers)
        if file not in {path.name for path in folder.joinpath(FOLDER).glob("[!.]*")}:
            raise RltuneError(f"{file}: the report has no such file", PAGE, f"/sweeps/{name}")
        return FileResponse(folder / FOLDER / file, headers=headers)

    def show_form(self, like: str | None = None) -> Response:
        """Show the form of a new sweep, filled with the settings of the sweep ``like``."""
        overrides = self._service.submissions.get(like).overrides if like else ()
        return self._render_form({"overrides": shlex.join(overrides)})

    def render_error(self, error: RltuneError, status: int) -> Response:
        """Show what was wrong with a request, with the way back to the pages."""
        return self._render("base.html", error, status)

    def _render_form(self, given: Mapping[str, str], error: RltuneError | None = None) -> Response:
        groups = sorted(list_groups("run"), key=lambda group: (group.name not in FIRST, group.name))
        options = {group: list(find_options(group.name)) for group in groups}
        return self._render("submit.html", error, options=options, first=FIRST, given=given, here="submit")

    def estimate(self, given: Form) -> Response:
        """Show what the sweep of a filled form costs at most and the command that submits it, while it is filled."""
        words, cost, error = [], "", None
        try:
            words = spell_form(given)
            cost = describe_cost(words)
        except RltuneError as refused:
            error = refused
        words += [f"{key}={given[key]}" for key in ("name", "group") if given.get(key)]
        return self._render("cost.html", cost=cost, refused=error, words=words)

    def compare(self, sweep: Annotated[list[str] | None, Query()] = None, group: str | None = None) -> Response:
        """Compare the winners of some sweeps, or of the complete ones of a group in the order of submission."""
        names = [*(sweep or ())]
        if group is not None:
            submitted = sorted(self._service.submissions.list(COMPLETE), key=lambda row: (row.submitted_s, row.id))
            names += [row.name for row in submitted if row.group == group]
        if not names:
            raise RltuneError(f"{group}: no sweep of this group is complete", "a group with ended sweeps", "/")
        compared = self._service.compare(names)
        table = TextTable(compared.headings, tuple(compared.cells()))
        section = Section("comparison", "Winners", table, notes=[EXPLAINED, *compared.notes])
        return self._render("compare.html", comparison=compared, section=section)

    async def submit(self, given: Form, request: Request) -> Response:
        """Submit the sweep of a filled form."""
        try:
            name, group = given.get("name") or None, given.get("group") or None
            submitted = await self._admission.run(request, self._service.submit, spell_form(given), name, group)
        except RltuneError as error:
            return self._render_form(given, error)
        return RedirectResponse(f"/sweeps/{quote(submitted['name'])}", 303)

    def show_login(self) -> Response:
        """Show the login form, which asks for the token."""
        return self._render("login.html")

    def log_in(self, request: Request, given: Form) -> Response:
        """Log a browser in that has sent the right token."""
        # People paste the whole link that the service has printed, too.
        if not self._access.is_token(given.get("token", "").rpartition("#")[2]):
            wrong = RltuneError("this is not the service's token", "what rltune serve printed", "copy it from there")
            return self._render("login.html", wrong, 401)
        request.session[LOGGED_IN] = True
        return RedirectResponse("/", 303)


def _redirect_back(name: str, given: Mapping[str, str]) -> Response:
    return RedirectResponse("/" if given.get("from") == "list" else f"/sweeps/{quote(name)}", 303)


def spell_form(given: Mapping[str, str]) -> list[str]:
    """Convert a filled form to the words of a command line: its chosen options, then what is typed in its text box.

    Raises:
        ConfigError: The text cannot be split into words.
    """
    chosen = [f"{group.name}={given[group.name]}" for group in list_groups("run") if given.get(group.name)]
    try:
        return chosen + shlex.split(given.get("overrides", ""))
    except ValueError as error:
        raise ConfigError(
            "overrides",
            given["overrides"],
            f": {error}",
            "key=value, one after the other, quoted as for a shell",
            "space.lr=3e-4 seed=1",
        ) from None


def read_arguments(verb: str, given: dict[str, str]) -> dict[str, Any]:
    """Read the arguments of a sweep's action, such as the trials to retry, from its form.

    Raises:
        ConfigError: It cannot be read.
    """
    if verb == "enqueue":
        values = {name.removeprefix("space."): text for name, text in given.items() if name.startswith("space.")}
        return {"space": {name: _read_value(name, text) for name, text in values.items() if text.strip()}}
    if verb == "resume" and given.get("trials"):
        return {"overrides": [f"budget.trials={_read_int(given['trials'])}"]}
    return {}


def _read_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError("trials", text, "", "a whole number", "trials=40") from None


def _read_value(name: str, text: str) -> Any:
    try:
        return yaml.safe_load(_spell_number(text))
    except yaml.YAMLError:
        raise ConfigError(
            f"space.{name}", text, "is no value", "a number, a word, or a list", "space.lr=1e-3"
        ) from None


def _spell_number(text: str) -> str:
    """Format a number for YAML, which would read ``1e-3`` as text."""
    try:
        return json.dumps(float(text)) if "e" in text.lower() else text
    except ValueError:
        return text
