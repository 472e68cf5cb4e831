"""The service's state in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rltune.service.submissions import ENDED, QUEUED, RUNNING, Submissions

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class SweepMetrics(Collector):
    """Count the submissions of a service by their states.

    Args:
        submissions: The service's submissions.
        num_starts: How many drivers this service has started since it was started itself.
    """

    def __init__(self, submissions: Submissions, num_starts: int) -> None:
        self._submissions, self._num_starts = submissions, num_starts

    def collect(self) -> Iterator[Metric]:
        """Read the states from the queue's table, so that they stay right after a restart of the service."""
        states = Counter(submission.state for submission in self._submissions.list())
        sweeps = GaugeMetricFamily("rltune_sweeps", "Submitted sweeps by state.", labels=["state"])
        for state in (QUEUED, RUNNING, *ENDED):
            sweeps.add_metric([state], states[state])
        yield sweeps
        starts = "Drivers that this service has started, the first and the later ones of a sweep."
        yield CounterMetricFamily("rltune_driver_starts", starts, value=self._num_starts)


def write_metrics(submissions: Submissions, num_starts: int) -> bytes:
    """Write the metrics of a service as Prometheus reads them; for the arguments see `SweepMetrics`."""
    registry = CollectorRegistry()
    registry.register(SweepMetrics(submissions, num_starts))
    return generate_latest(registry)
