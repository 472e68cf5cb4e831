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
    """

    def __init__(self, submissions: Submissions) -> None:
        self._submissions = submissions

    def collect(self) -> Iterator[Metric]:
        """Read the metrics from the queue's tables, so that they stay right after a restart of the service."""
        submissions = self._submissions.list()
        states = Counter(submission.state for submission in submissions)
        sweeps = GaugeMetricFamily("rltune_sweeps", "Submitted sweeps by state.", labels=["state"])
        for state in (QUEUED, RUNNING, *ENDED):
            sweeps.add_metric([state], states[state])
        yield sweeps
        events = self._submissions.list_events([submission.id for submission in submissions])
        starts = sum(event.state == RUNNING for changes in events.values() for event in changes)
        yield CounterMetricFamily("rltune_driver_starts", "Starts of the drivers of these sweeps.", value=starts)


def write_metrics(submissions: Submissions) -> bytes:
    """Write the metrics of a service as Prometheus reads them."""
    registry = CollectorRegistry()
    registry.register(SweepMetrics(submissions))
    return generate_latest(registry)
