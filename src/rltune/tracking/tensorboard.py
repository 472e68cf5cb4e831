"""Write a sweep's curves as TensorBoard event files, in one folder per trial, with values for the HParams tab."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rltune.records import Report, RunKey, TrialRecord
from rltune.tracking.tracker import SweepDescription, Tracker, get_certified_score

FOLDER = "tensorboard"  # The subfolder of a sweep's folder with the event files.
# Metrics that TensorBoard's HParams tab shows beside each trial's parameters.
OUTCOMES = {"score": 0.0, "certified_score": 0.0}


class TensorBoardTracker(Tracker):
    """Event files in one folder. A point that is written twice is shown once, so repeated deliveries do no harm."""

    name = "TensorBoard"

    def __init__(self, sweep: SweepDescription) -> None:
        super().__init__(sweep)
        self._folder = sweep.folder / FOLDER
        self._writers: dict[str, Any] = {}

    def open(self) -> None:
        """Create the folder for the event files."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def write(self, trial: TrialRecord, reports: Sequence[Report]) -> None:
        """Write reports of a trial and its certified score, and close the event file of a trial that has ended."""
        has_ended, name = trial.state != "RUNNING", trial.run_key.name
        certified = get_certified_score(trial) if has_ended else {}
        if reports or certified:
            writer = self._open_writer(name, trial)
            for report in reports:
                for number, value in report.numbers.items():
                    writer.add_scalar(number, value, report.nominal_steps, report.time_s)
            for number, value in certified.items():
                writer.add_scalar(number, value, max(trial.reports), trial.ended_s)
            writer.flush()
        if has_ended and name in self._writers:
            self._writers.pop(name).close()

    def describe(self, key: RunKey | None, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Write metrics at step 0."""
        if metrics:
            writer = self._open_writer(key.name if key else self.sweep.name, None)
            for name, value in metrics.items():
                writer.add_scalar(name, value, 0, time.time())
            writer.flush()

    def close(self) -> None:
        """Close all event files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _open_writer(self, name: str, trial: TrialRecord | None) -> Any:
        if name not in self._writers:
            from tensorboardX import SummaryWriter  # tensorboardX is installed, because Ray Tune depends on it.
            from tensorboardX.summary import hparams

            writer = self._writers[name] = SummaryWriter(
                str(self._folder / name),
                # Two files that are created in the same second would get the same name, so the suffix distinguishes
                # them.
                filename_suffix=f".{time.time_ns()}",
            )
            if trial is not None:
                values = {
                    parameter: value if isinstance(value, (bool, int, float, str)) else str(value)
                    for parameter, value in trial.params.items()
                }
                for part in hparams(values, OUTCOMES):
                    writer.file_writer.add_summary(part)
        return self._writers[name]
