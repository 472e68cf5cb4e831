"""The curves that portfolios are chosen from, and the choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import metadata
from benchmarks.metadata import MARKS, Algorithm, Dataset, Part, Trial, list_parts

pytestmark = [pytest.mark.fast, pytest.mark.nightly]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The names of the sweeps that are run and the number of configurations that each is given; none is trained."""
    done: list[tuple[str, int]] = []

    def run_part(part: Part, configurations: Any) -> list[Trial]:
        done.append((part.name, len(configurations)))
        score = 10.0 * part.shape
        values = configurations or [{"lr": 1e-3}, {"lr": 1e-4}]
        (metadata.WORK / "outputs" / part.name).mkdir(parents=True)
        return [(dict(each), [score + index] * MARKS, 2.0) for index, each in enumerate(values)]

    monkeypatch.setattr(metadata, "run_part", run_part)
    monkeypatch.setattr(metadata, "ALGORITHMS", {"ppo": Algorithm(metadata.NORMALISED[:2], 2, (), {"cc_toy": 1000})})
    return done


def test_a_collection_goes_on_where_it_stopped(
    tmp_path: Path, runs: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "WORK", tmp_path / "work")
    folder, parts = tmp_path / "curves", list(list_parts(["ppo"], []))
    metadata.collect(Dataset.read(folder), parts, 0.001)
    assert runs == [("ppo_cc_toy-0-0", 0)], "4 CPU seconds are more than a thousandth of an hour"
    metadata.collect(Dataset.read(folder), parts, 1)
    assert runs[1:] == [("ppo_cc_toy-1-0", 0), ("ppo_cc_toy-1-1", 2)], "the better half is the second shape's"
    metadata.collect(Dataset.read(folder), parts, 1)
    assert len(runs) == 3
    dataset = Dataset.read(folder)
    assert dataset.curves["ppo_cc_toy"].shape == (4, 2, MARKS)
    assert np.isnan(dataset.curves["ppo_cc_toy"][:, 1, -1]).tolist() == [True, True, False, False]
    assert dataset.pairs["ppo_cc_toy"]["env_steps"][-1] == 1000


def test_configurations_are_spelled_as_hydra_reads_them() -> None:
    values = {"lr": 0.0012345678, "fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", metadata.OBSERVATIONS: True}
    assert metadata.spell_values(values, [metadata.OBSERVATIONS]) == (
        '{lr:0.0012345678,fcnet_hiddens:[64, 64],fcnet_activation:"tanh"}'
    )
