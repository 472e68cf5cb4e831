"""Write a sweep's curves as TensorBoard's event files, one folder a trial, with the values for its HParams tab."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rltune.records import CERTIFY, Report, RunKey, TrialRecord

FOLDER = "tensorboard"
OUTCOMES = {"score": 0.0, "certified_score": 0.0}  # what the HParams tab shows beside the values


class TensorBoardFiles:
    """Event files below one folder; TensorBoard shows a point that stands in them twice as one.

    Args:
        folder: ``outputs/<sweep>/tensorboard``.
    """

    name = "TensorBoard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, Any] = {}
        self._sweep = ""

    def open(self, sweep: str, key: str, params: Mapping[str, Any]) -> None:
        """Make the folder."""
        self._sweep = sweep
        self._folder.mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        """Delete all files."""
        self.close()
        shutil.rmtree(self._folder)
        self._folder.mkdir()

    def write(self, record: TrialRecord, reports: list[Report]) -> None:
        """Add reports."""
        writer = self._find_writer(record.run_key.name, record)
        for report in reports:
            for name, value in report.numbers.items():
                writer.add_scalar(name, value, report.nominal_steps, report.time_s)
        writer.flush()

    def end(self, record: TrialRecord) -> None:
        """Add the score."""
        name = record.run_key.name
        if record.score is not None:
            writer = self._find_writer(name, record)
            numbers = {"score": record.score} | ({"certified_score": record.score} if record.kind == CERTIFY else {})
            for number, value in numbers.items():
                writer.add_scalar(number, value, max(record.reports), record.ended_s)
        if name in self._writers:
            self._writers.pop(name).close()

    def describe(self, key: RunKey | None, metrics: Mapping[str, float]) -> None:
        """Add numbers at step 0."""
        writer = self._find_writer(key.name if key else self._sweep, None)
        for name, value in metrics.items():
            writer.add_scalar(name, value, 0, time.time())
        writer.flush()

    def close(self) -> None:
        """Close all files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _find_writer(self, name: str, record: TrialRecord | None) -> Any:
        if name not in self._writers:
            from tensorboardX import SummaryWriter  # Ray Tune brings it
            from tensorboardX.summary import hparams

            writer = self._writers[name] = SummaryWriter(
                str(self._folder / name),
                filename_suffix=f".{time.time_ns()}",  # two of one second would overwrite each other
            )
            if record is not None:
                values = {
                    one: value if isinstance(value, (bool, int, float, str)) else str(value)
                    for one, value in record.params.items()
                }
                for part in hparams(values, OUTCOMES):
                    writer.file_writer.add_summary(part)
        return self._writers[name]
