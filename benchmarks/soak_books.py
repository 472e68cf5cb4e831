"""What the ledger, MLflow and the diaries say of a sweep, point by point; see ``benchmarks/soak.py``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from rltune.records import TrialRecord

WHOLE = list(range(100, 2001, 100))


def read_records(sweep: Path, storage: str | None = None) -> list[TrialRecord]:
    """The search's trials, as the ledger has them."""
    from rltune.ledger.storage import open_ledger

    ledger = open_ledger(sweep, storage)
    records = ledger.trials.records()
    ledger.close()
    return records


def books(
    sweep: Path, trials: int, iteration_s: float, storage: str | None = None, uri: str | None = None
) -> dict[str, Any]:
    """What a sweep has come to.

    Args:
        sweep: Its folder.
        trials: Its budget.
        iteration_s: What repeating one iteration costs.
        storage: Where its ledger is, with its login; None is in its folder.
        uri: MLflow's address; None is the store of the folder in which its driver ran.
    """
    folder, records = sweep.parents[1], read_records(sweep, storage)
    lines = [Counter(path.read_text().split()) for path in folder.glob("trained/*")]
    return {
        "trials": len(records),
        "complete": sum(record.state == "COMPLETE" for record in records),
        "failed_trials": sum(record.state == "FAIL" for record in records),
        "curves_whole": sum(list(record.reports) == WHOLE for record in records),
        "lost": trials - len(records),
        "repeated_s": round(iteration_s * sum(count - 1 for counts in lines for count in counts.values()), 1),
        **compare_with_mlflow(sweep, storage, uri or f"sqlite:///{folder / 'mlflow.db'}"),
    }


def compare_with_mlflow(sweep: Path, storage: str | None, uri: str) -> dict[str, Any]:
    """Every number of every report in the ledger against its curve in MLflow.

    Returns:
        Runs by kind, those that the ledger does not know (``doubled``) and those that have not ended (``running``);
        points of the ledger that MLflow lacks, and points of MLflow that the ledger lacks or that MLflow has twice;
        whether the parent's ``best_score`` ends with the best score.
    """
    from mlflow import MlflowClient

    from rltune.ledger.storage import open_ledger

    client, ledger = MlflowClient(uri), open_ledger(sweep, storage)
    places = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(places, f"tags.`rltune.sweep` = '{sweep.name}'", max_results=5000)
    parents = [run for run in runs if "rltune.key" in run.data.tags]
    found: Counter[str] = Counter()
    names: set[str] = set()
    known = {ledger.sweep().mlflow_run_id}
    for table in (ledger.trials, ledger.runs):
        for record in table.records():
            known.add(record.mlflow_run_id)
            reports = table.read_reports(record.number)
            found["reports"] += len(reports)
            numbers = {name for report in reports for name in report.numbers}
            names |= numbers
            for name in numbers:
                wanted = {(one.nominal_steps, one.numbers[name]) for one in reports if name in one.numbers}
                curve = client.get_metric_history(record.mlflow_run_id, name) if record.mlflow_run_id else []
                shown = [(point.step, point.value) for point in curve]
                found["missing_points"] += len(wanted - set(shown))
                found["doubled_points"] += len(shown) - len(wanted & set(shown))
    best = max((record.score for record in ledger.trials.records() if record.score is not None), default=None)
    ledger.close()
    curve = [point for run in parents for point in client.get_metric_history(run.info.run_id, "best_score")]
    # As MLflow itself tells which one is the latest: several improvements may fall on one step.
    last = max(curve, key=lambda point: (point.step, point.timestamp, point.value), default=None)
    return {
        "parents": len(parents),
        "children": len(runs) - len(parents),
        "doubled": sum(run.info.run_id not in known for run in runs),
        "running": sum(run.info.status == "RUNNING" for run in runs),
        "reports": found["reports"],
        "metrics": len(names),
        "missing_points": found["missing_points"],
        "doubled_points": found["doubled_points"],
        "best_shown": (last.value if last else None) == best,
    }
