"""Write a sweep's curves as TensorBoard's event files, one folder a trial, with the values for its HParams tab."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rltune.records import Report, RunKey, TrialRecord
from rltune.tracking.tracker import SweepDescription, Tracker, get_certified_score

FOLDER = "tensorboard"  # The name of TensorBoard's folder in the sweep's folder.
OUTCOMES = {"score": 0.0, "certified_score": 0.0}  # TensorBoard's HParams tab shows these metrics beside the values.


class TensorBoardTracker(Tracker):
    """Event files below one folder; TensorBoard shows a point that is written twice as one."""

    name = "TensorBoard"

    def __init__(self, sweep: SweepDescription) -> None:
        super().__init__(sweep)
        self._folder = sweep.folder / FOLDER
        self._writers: dict[str, Any] = {}

    def open(self) -> None:
        """Create the folder for TensorBoard's files."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def write(self, trial: TrialRecord, reports: Sequence[Report]) -> None:
        """Add reports, and what a run of the certification has scored; close the file of a trial that has ended."""
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
        """Add numbers at step 0."""
        if metrics:
            writer = self._open_writer(key.name if key else self.sweep.name, None)
            for name, value in metrics.items():
                writer.add_scalar(name, value, 0, time.time())
            writer.flush()

    def close(self) -> None:
        """Close all files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _open_writer(self, name: str, trial: TrialRecord | None) -> Any:
        if name not in self._writers:
            from tensorboardX import SummaryWriter  # Ray Tune depends on tensorboardX.
            from tensorboardX.summary import hparams

            writer = self._writers[name] = SummaryWriter(
                str(self._folder / name),
                filename_suffix=f".{time.time_ns()}",  # Otherwise, files of the same second would overwrite each other.
            )
            if trial is not None:
                values = {
                    parameter: value if isinstance(value, (bool, int, float, str)) else str(value)
                    for parameter, value in trial.params.items()
                }
                for part in hparams(values, OUTCOMES):
                    writer.file_writer.add_summary(part)
        return self._writers[name]
