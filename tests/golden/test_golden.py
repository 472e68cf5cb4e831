"""What a finished sweep leaves behind, compared with files in this folder: a change of behavior shows as a diff.

``RLTUNE_UPDATE_GOLDEN=1 python -m pytest tests/golden`` writes the files anew; the diff belongs into the same commit.
Values that differ between two runs of the same sweep (times, paths, digests, ids) are replaced by placeholders.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from rltune.views import description
from rltune.views.sweep_view import load_view

GOLDEN = Path(__file__).parent
ROOT = Path(__file__).parents[2]
COMMANDS = sorted(path.stem for path in (ROOT / "sweeps").glob("*.py") if path.stem != "__init__")
SWEEP = (  # Two trials run their whole budget, one is stopped at its first rung, and one raises an error.
    "name=golden",
    "seed=1",
    "budget.trials=5",
    "resources.max_concurrent=1",
    "certify=on",
    "certify.top=1",
    "certify.seeds=2",
    "certify.episodes=5",
    "+space.fault=[choice,null,raise]",
    "warm_start=[{quality:0.9,fault:null},{quality:0.8,fault:null},{quality:0.1,fault:null},"
    "{quality:0.95,fault:raise},{quality:0.05,fault:null}]",
)
# Strings of these forms differ between two runs: digests, ids, commits, points in time.
VOLATILE_TEXT = re.compile(
    r"\b(?=[0-9a-f]*[a-f])(?:[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{32}|[0-9a-f]{16})\b"
    r"|\d{8}-\d{6}-[0-9a-f]{4}"
    r"|(?<=/)[0-9a-f]{8}(?=/(?:best|latest)-)"  # An attempt at a trial.
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:[+-]\d\d:\d\d|Z)?"
)
VOLATILE_KEY = re.compile(
    r"(_s|_at|_bytes|_gb|seconds|_percentage|_megabytes|efficiency|pid|host|user|version|^node"
    r"|^boot|^pid_namespace|^started|^counter)$"
)


def compare(name: str, text: str) -> None:
    """Compare a text with its golden file, or write the file where that is asked for."""
    path = GOLDEN / name
    text = text.rstrip("\n") + "\n"
    if os.environ.get("RLTUNE_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def normalize(text: str, folder: Path) -> str:
    """Replace what two runs of the same sweep do not share."""
    text = text.replace(str(ROOT), "<root>").replace(str(folder), "<folder>")
    return VOLATILE_TEXT.sub("<varies>", text)


def describe(value: Any, folder: Path, key: str = "") -> Any:
    """Return a JSON value with floats rounded, and with what differs between two runs replaced by its type."""
    if isinstance(value, dict):
        return {name: describe(value[name], folder, name) for name in sorted(value)}
    if key == "sessions":  # The processes of this machine's Ray.
        return "<sessions>"
    if isinstance(value, list):
        return [describe(item, folder, key) for item in value]
    if VOLATILE_KEY.search(key) and value is not None:
        return f"<{type(value).__name__}>"
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, str) and value.startswith("{"):  # A column that holds JSON.
        with contextlib.suppress(json.JSONDecodeError):
            return describe(json.loads(value), folder)
    return normalize(value, folder) if isinstance(value, str) else value


def to_json(value: Any, folder: Path) -> str:
    """Return a value as JSON, with what two runs do not share replaced."""
    return json.dumps(describe(value, folder), indent=1)


@pytest.fixture(scope="module")
def sweep(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a toy sweep that has ended, and what it printed."""
    from toy import run_toy

    folder, stream = tmp_path_factory.mktemp("golden"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        run_toy(folder, patch, stream, *SWEEP)
    return folder, stream.getvalue()


def test_the_summary_stays_as_it_is(sweep: tuple[Path, str]) -> None:
    folder, _ = sweep
    summary = json.loads((folder / "outputs" / "golden" / "summary.json").read_text())
    compare("summary.json", to_json(summary, folder))
    described = description.describe(load_view(folder / "outputs" / "golden"))
    trials = {key: described["trials"][key] for key in summary["trials"]}
    assert {key: described[key] for key in summary} | {"trials": trials} == summary, "show json=true says the same"


def test_the_rows_of_the_ledger_stay_as_they_are(sweep: tuple[Path, str]) -> None:
    folder, _ = sweep
    with sqlite3.connect(folder / "outputs" / "golden" / "ledger.db") as ledger:
        ledger.row_factory = sqlite3.Row
        names = [
            row["name"] for row in ledger.execute("SELECT name FROM sqlite_master WHERE type='table' ORDER BY name")
        ]
        lines = []
        for name in names:
            rows = [dict(row) for row in ledger.execute(f"SELECT * FROM {name}")]
            if name == "reports":  # Four reports of each trial show what all of them hold.
                rows = [row for row in rows if row["env_steps"] % 500 == 0]
            for row in rows:
                row.update((key, "<text>") for key in ("config", "versions", "traceback") if row.get(key))
            described = [f"{name} {json.dumps(describe(row, folder))}" for row in rows]
            # Two trackers' feeds write their marks in any order.
            lines += sorted(described) if name == "trial_deliveries" else described
    compare("ledger.txt", "\n".join(lines))


def test_the_files_of_the_folder_stay_as_they_are(sweep: tuple[Path, str]) -> None:
    folder, _ = sweep
    files = sorted(
        str(path.relative_to(folder / "outputs")) for path in (folder / "outputs").rglob("*") if path.is_file()
    )
    assert (folder / "outputs" / "golden").stat().st_mode & 0o777 == 0o700
    names = [normalize(name, folder) for name in files if not name.endswith(("-wal", "-shm"))]
    compare("files.txt", "\n".join(sorted(names)))


def test_the_runs_in_mlflow_stay_as_they_are(sweep: tuple[Path, str]) -> None:
    folder, _ = sweep
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()], max_results=1000)
    listed = [
        {
            "name": run.info.run_name,
            "status": run.info.status,
            "tags": {
                key: "<text>" if key == "rltune.traceback" else value  # It has the numbers of lines of code.
                for key, value in run.data.tags.items()
                if key != "mlflow.note.content"
            },
            "params": sorted(run.data.params),
            "metrics": {key: value for key, value in run.data.metrics.items() if not key.startswith("system/")},
            "artifacts": sorted(file.path for file in client.list_artifacts(run.info.run_id)),
        }
        for run in sorted(runs, key=lambda run: run.info.run_name)
    ]
    compare("mlflow.json", to_json(listed, folder))


def test_the_closing_page_stays_as_it_is(sweep: tuple[Path, str]) -> None:
    folder, printed = sweep
    times = r"\d+(\.\d+)? (s|min|h)\b( \d+ (s|min)\b)?|\d+:\d\d\b"
    printed = re.sub(rf"{times}|\d+%(?![0-9A-F]{{2}})|[\d.,]+k? env steps/s", "<varies>", printed)
    printed = re.sub(r"(?<=%27)[0-9a-f]{32}", "<varies>", printed)
    # Notes are printed at once, what has happened to trials with the next drawing, and progress only every so often.
    lines, page = normalize(printed, folder).split("\n\n", 1)
    printed = "\n".join(sorted(line for line in lines.splitlines() if not line.startswith("["))) + f"\n\n{page}"
    compare("closing_page.txt", re.sub(r"(?m) +$", "", printed))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_stays_as_it_is(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))  # As with an active environment.
    from rltune.cli.application.help_page import write_help

    compare(f"help/{command}.txt", write_help(command, 100))


def test_the_policy_of_a_trial_stays_as_it_is(finished_sweep: Any) -> None:
    """That of the first one, whose configuration is the same on each machine."""
    (folder,) = (path.parent for path in (finished_sweep.sweep / "trials" / "0").glob("*/best-*/policy"))
    shapes: Callable[[Any], Any]

    def shapes(value: Any) -> Any:
        """Return the keys and types of a JSON value: weights and returns differ between machines."""
        if isinstance(value, dict):
            return {key: shapes(value[key]) for key in sorted(value)}
        if isinstance(value, list):
            return [shapes(value[0])] if value else []
        return value if isinstance(value, (str, bool)) or value is None else type(value).__name__

    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    files = [name for name in files if not name.startswith("algorithm/")]  # RLlib's own
    described = {
        str(path.relative_to(folder)): shapes(json.loads(path.read_text()))
        for path in sorted(folder.rglob("*.json"))
        if path.relative_to(folder).parts[0] != "algorithm"
    }
    compare("policy.json", to_json({"files": files, "json": described}, finished_sweep.folder))
