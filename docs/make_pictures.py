"""Make all pictures of README and docs/ from sweeps run for them: the terminal, the report, MLflow, the service.

    python docs/make_pictures.py

A service runs over a project folder, which is temporary unless --project names one; sweeps that it has already are not
run again, so that a new folder is wanted for pictures of a sweep at work. Pages are opened in a headless Chromium, so
that a picture shows what a reader sees. Nothing is invented. Each PNG has the headings of its tables in its text
"columns", which a test compares with those of the code.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, PngImagePlugin
from rich.console import Console as RichConsole
from rich.text import Text

import rltune
from rltune.config.settings_file import format_settings, read_settings
from rltune.ledger.ledger import Ledger
from rltune.records import TRIALS, Report, TrialRecord
from rltune.tracking.mlflow_address import make_charts_address
from rltune.views.html import PAGE, write_report
from rltune.views.progress import Line, describe_changes, render_live_table
from rltune.views.sweep_view import DriverState, SweepView, load_view

if TYPE_CHECKING:
    from tests.service.browser import Browser

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ("live-table.svg", "report.png", "report-dark.png", "mlflow.png", "service-list.png", "service-sweep.png")
WIDTH, HEIGHT, LINES_BEFORE = 104, 24, 5  # Of the terminal, in characters.
PAGE_WIDTH = 1400  # Of a browser's window, in pixels.
ENDED, RUNNING = "cartpole-ppo", "acrobot-ppo"
SWEEPS = {  # What is submitted, in this order; the last two wait.
    ENDED: ["algo=ppo", "env=cartpole", "budget.trials=12", "budget.env_steps=20000", "certify.seeds=5"],
    RUNNING: ["algo=ppo", "env=acrobot", "budget.trials=14", "budget.env_steps=20000"],
    "seed-1": ["algo=dqn", "env=cartpole", "budget.env_steps=20000", "seed=1"],
    "seed-2": ["algo=dqn", "env=cartpole", "budget.env_steps=20000", "seed=2"],
}
SHOT_AFTER = 6  # The service is photographed once so many trials of the running sweep have ended.
PATIENCE_S = 3600.0  # The longest that a sweep may take, on a busy machine.
HEADS = "[...document.querySelectorAll('thead th')].filter(head => head.offsetWidth)"
COLUMNS = f"{HEADS}.map(head => head.textContent).join('|')"


def draw_live_table(folder: Path, share: float = 0.75) -> str:
    """Return the live table of a sweep that has ended, as it stood while the search was at work, as SVG.

    The sweep's ledger is copied and filled again with what had happened by a moment. The picture is drawn from views of
    this copy, as in a terminal.

    Args:
        folder: A sweep's.
        share: The share of the search's time after which the picture is taken.
    """
    ledger = rltune.open_ledger(folder)
    table = ledger.table(TRIALS)
    records = table.records()
    events = _list_events(records, [report for record in records for report in table.read_reports(record.number)])
    ledger.close()
    began, ended = events[0][0], max(record.ended_s or 0.0 for record in records)
    slots = max(1, sum(1 for record in records if (record.began_s or 0.0) - began < 1.0))
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as copy_folder:
        copy = Ledger(f"sqlite:///{copy_folder}/ledger.db", folder.name, create=True)
        copy.change_sweep(status="running", config=format_settings(read_settings(folder)))
        before = view = SweepView.read(copy, None, DriverState(slots=slots), now_s=began)
        for time_s, event in events:
            if time_s > began + share * (ended - began):
                break
            _apply(copy, event, time_s)
            before, view = view, SweepView.read(copy, view, DriverState(slots=slots), now_s=time_s)
            lines += [line for line in describe_changes(before, view) if line.is_printed]
        copy.close()
    paper = RichConsole(
        record=True, width=WIDTH, file=io.StringIO(), highlight=False, force_terminal=True, color_system="truecolor"
    )
    for line in lines[-LINES_BEFORE:]:
        paper.print(Text(line.text, line.style), no_wrap=True, overflow="ellipsis")
    paper.print(render_live_table(view, HEIGHT, WIDTH))
    picture = paper.export_svg(title=f"sweep {folder.name}", unique_id="rltune")
    return re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)  # rich has it load fonts from a server


def _list_events(records: list[TrialRecord], reports: list[Report]) -> list[tuple[float, Any]]:
    """List what has happened, in order; a trial stands for its beginning, and later for its end."""
    begun = [(record.began_s or 0.0, record) for record in records]
    ended = [(record.ended_s, record) for record in records if record.ended_s]
    return sorted([*begun, *((report.time_s, report) for report in reports), *ended], key=lambda event: event[0])


def _apply(copy: Ledger, event: Report | TrialRecord, time_s: float) -> None:
    """Write an event into the copy."""
    if isinstance(event, Report):
        copy.trials.add_report(event)
    elif event.ended_s == time_s:
        copy.trials.end(event.number, event.state, event.stop_reason or "", diverged=event.diverged)
    else:
        copy.trials.start(copy.trials.add(event.params, event.seeds).number)


@contextlib.contextmanager
def run_service(project: Path) -> Iterator[rltune.Client]:
    """Run ``rltune serve`` in a project folder, by this Python's environment and with the code of this checkout."""
    program = Path(sys.executable).with_name("rltune")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "RLTUNE_"))}
    env |= {"PATH": f"{program.parent}:{env['PATH']}", "PYTHONPATH": f"{ROOT / 'src'}"}
    with (project / "serve.log").open("ab") as log:
        process = subprocess.Popen([program, "serve", "port=0"], cwd=project, env=env, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 120.0
            while True:
                with contextlib.suppress(rltune.RltuneError):
                    client = rltune.Client(output_dir=str(project / "outputs"))
                    client.check()
                    break
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((project / "serve.log").read_text())
                time.sleep(0.5)
            yield client
        finally:
            process.terminate()
            process.wait(60)


def shoot(browser: Browser, picture: Path, height: int) -> None:
    """Take a picture of the top of the page, with the headings of its tables as the text ``columns``."""
    browser.resize(PAGE_WIDTH, height)
    browser.run("document.documentElement.style.overflow = 'hidden'")  # Without a scrollbar.
    time.sleep(2.0)  # Figures are drawn anew.
    browser.shoot(picture, (PAGE_WIDTH, height))
    facts = PngImagePlugin.PngInfo()
    facts.add_text("columns", str(browser.run(COLUMNS)))
    with Image.open(picture) as image:
        small = image.convert("RGB").quantize(128)
    small.save(picture, optimize=True, pnginfo=facts)


def shoot_service(browser: Browser, client: rltune.Client, project: Path, folder: Path) -> None:
    """Submit the sweeps that are missing, and take the pictures of the service once the second one is at work."""
    present = {sweep["name"] for sweep in client.list()}
    if ENDED not in present:
        client.submit(*SWEEPS[ENDED], name=ENDED)
    client.wait(ENDED, timeout_s=PATIENCE_S)
    others = [name for name in SWEEPS if name != ENDED]
    for name in others:
        if name not in present:
            client.submit(*SWEEPS[name], name=name, group=None if name == RUNNING else "seeds")
    deadline = time.monotonic() + PATIENCE_S
    while not (sweep := client.show(RUNNING)["sweep"]) or sweep["trials"]["ended"] < SHOT_AFTER:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{RUNNING} has not come so far")
        time.sleep(0.5)
    token = (project / "outputs" / ".service" / "token").read_text().strip()
    browser.open(f"{client.address}/login#{token}")
    browser.wait("document.querySelector('#sweeps')")
    shoot(browser, folder / "service-list.png", 600)
    browser.open(f"{client.address}/sweeps/{RUNNING}")
    browser.wait("document.querySelector('#table-trials')")
    shoot(browser, folder / "service-sweep.png", 1750)
    for name in reversed(others):  # The running one last, so that no other is begun.
        if client.show(name)["state"] in ("running", "queued"):
            client.stop(name)


def shoot_report(browser: Browser, sweep: Path, folder: Path) -> None:
    """Take the pictures of the top of a sweep's report, in light and dark."""
    page = (write_report(sweep) / PAGE).as_uri()
    browser.open(page)
    for picture, scheme in (("report.png", "light"), ("report-dark.png", "dark")):
        browser.prefer(scheme)
        browser.wait("document.body.dataset.drawn")
        shoot(browser, folder / picture, 1700)
    browser.prefer("light")


def shoot_mlflow(browser: Browser, project: Path, sweep: Path, folder: Path) -> None:
    """Take the picture of a sweep's trials as MLflow charts them, by the address that the sweep prints."""
    from tests.support.server import Server

    view = load_view(sweep)
    server = Server(project, f"sqlite:///{project / 'mlflow.db'}").start().wait()
    try:
        store = {**(view.record.mlflow or {}), "uri": server.uri}
        browser.open(str(make_charts_address(store, view.record.key, view.criteria.direction)))
        browser.wait("document.querySelector('.js-plotly-plot')")
        for part in (
            "mlflow.assistant.chat_panel.close",
            "mlflow_header.toggle_sidebar_button",
        ):  # More room for charts.
            browser.run(f"document.querySelector('[data-component-id=\"{part}\"]')?.click()")
        time.sleep(3.0)
        shoot(browser, folder / "mlflow.png", 760)
    finally:
        server.kill()


def main() -> None:
    """Write the pictures beside this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--project", type=Path, help="the folder of the sweeps, which is kept")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="the folder of the pictures")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from tests.service.browser import open_browser

    with tempfile.TemporaryDirectory(prefix="rltune-") as temporary:
        project = Path(arguments.project or temporary).absolute()
        project.mkdir(exist_ok=True)
        sweep = project / "outputs" / ENDED
        with open_browser(Path(temporary) / "profile") as browser:
            with run_service(project) as client:
                shoot_service(browser, client, project, arguments.out)
            shoot_report(browser, sweep, arguments.out)
            shoot_mlflow(browser, project, sweep, arguments.out)
        (arguments.out / "live-table.svg").write_text(draw_live_table(sweep))


if __name__ == "__main__":
    main()
