"""The address of a sweep's charts, as a browser opens it in a real MLflow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from rltune.records import Direction
from rltune.secrets import redact
from rltune.tracking.mlflow_address import make_charts_address, make_server_command
from tests.service.browser import open_browser
from tests.tracking.tracked_sweep import Sweep

IS_DRAWN = "document.querySelector('.js-plotly-plot') && document.body.innerText.includes('(compare/score)')"


@pytest.mark.parametrize(
    ("uri", "server", "command"),
    [
        ("http://mlflow.example:5000", "http://mlflow.example:5000/", None),
        ("https://***@mlflow.example/tracked/", "https://mlflow.example/tracked/", None),
        (
            "sqlite:////work/mlflow.db",
            "http://127.0.0.1:5000/",
            "mlflow ui --backend-store-uri sqlite:////work/mlflow.db",
        ),
        (
            "postgresql://***@db/mlflow",
            "http://127.0.0.1:5000/",
            "mlflow ui --backend-store-uri postgresql://***@db/mlflow",
        ),
        ("databricks://profile", None, None),
        ("databricks", None, None),
    ],
)
def test_charts_are_opened_where_the_store_is_served(uri: str, server: str | None, command: str | None) -> None:
    store = {"uri": uri, "experiment": "7"}
    address = make_charts_address(store, "abc", Direction.MAX)
    assert (address.partition("#")[0] if address else None) == server
    started = make_server_command(store)
    assert (started.rpartition("/mlflow ")[2].removeprefix("mlflow ") if started else None) == (
        command.removeprefix("mlflow ") if command else None
    )


@pytest.mark.parametrize(("direction", "ascending"), [(Direction.MAX, "false"), (Direction.MIN, "true")])
def test_the_best_trial_stands_first_in_either_direction(direction: Direction, ascending: str) -> None:
    address = make_charts_address({"uri": "http://host", "experiment": "7"}, "abc", direction)
    assert address is not None
    assert redact(address) == address, "it is printed whole"
    query = parse_qs(urlsplit(urlsplit(address).fragment).query)
    assert (query["orderByKey"], query["orderByAsc"]) == (["metrics.`compare/score`"], [ascending])
    assert make_charts_address(None, "abc", direction) is None


@pytest.mark.nightly
def test_a_browser_opens_the_trials_as_charts(folder: Path, server: Any, tmp_path: Path) -> None:
    sweep = Sweep(folder, server.uri).begin(trials=3)
    for number, score in enumerate((5.0, 7.0, 6.0)):
        sweep.report(number, 100, score=0.0)
        sweep.report(number, 200, score=score)
    sweep.end(sweep.add_run(2, 0, lr=0.003), "FAIL", sweep.ledger.runs)
    Sweep(tmp_path / "other", server.uri).begin(trials=1).settle().tracker.close("FINISHED")  # Of the same name.
    sweep.settle()
    record = sweep.ledger.sweep()
    address = make_charts_address(record.mlflow, record.key, Direction.MAX)
    assert address is not None
    assert address.startswith(f"{server.uri}/#/")
    with open_browser(tmp_path / "profile") as browser:
        browser.resize(1400)
        browser.open(address)
        browser.wait(IS_DRAWN)
        text = browser.text()
    assert re.findall(r"trial-(\d+) \(compare/score\)", text) == ["001", "002", "000"], "the best first"
    assert "3 matching runs" in text
