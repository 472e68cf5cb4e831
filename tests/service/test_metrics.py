"""What Prometheus reads of a service."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from rltune.service.metrics import write_metrics
from rltune.service.submissions import Submissions


def test_sweeps_are_counted_by_state(tmp_path: Path) -> None:
    queue = Submissions(f"sqlite:///{tmp_path / 'queue.db'}", "here")
    for name in ("a", "b", "c"):
        queue.add(name, [])
    for name, end in (("a", "complete"), ("b", "failed")):
        queue.change(queue.get(name), state="running")
        queue.change(queue.get(name), state=end)
    families = text_string_to_metric_families(write_metrics(queue, 2).decode())
    values = {(each.name, each.labels.get("state")): each.value for family in families for each in family.samples}
    assert values["rltune_sweeps", "queued"] == values["rltune_sweeps", "complete"] == 1
    assert (values["rltune_sweeps", "failed"], values["rltune_sweeps", "running"]) == (1, 0)
    assert values["rltune_driver_starts_total", None] == 2
    queue.close()
