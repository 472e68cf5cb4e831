"""What a runner makes of RLlib's results; that it trains each algorithm, tests/conformance shows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from rltune.errors import NonFiniteError
from rltune.sweep.plan import make_plan
from rltune.trial.algorithm_runner import AlgorithmRunner


class Scripted:
    """An algorithm whose results are known."""

    def __init__(self, losses: list[tuple[int, float]]) -> None:
        self.losses = iter(losses)

    def train(self) -> dict[str, Any]:
        trained, loss = next(self.losses)
        learner = {"num_module_steps_trained_lifetime": trained, "total_loss": loss}
        return {"env_runners": {}, "learners": {"default_policy": learner}}


@pytest.fixture
def runner_of(request_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., AlgorithmRunner]:
    """A runner of an algorithm with these (steps trained so far, loss)."""

    def make(*losses: tuple[int, float]) -> AlgorithmRunner:
        engines: list[str] = []

        def build(config: Any, engine: str) -> Scripted:
            engines.append(engine)
            return Scripted(list(losses))

        monkeypatch.setattr("rltune.trial.algorithm_runner.build_algorithm", build)
        runner = AlgorithmRunner(make_plan(request_of()).build, {}, seed=1, engine="rllib", threads=1)
        assert engines == ["rllib"]
        return runner

    return make


def test_an_iteration_without_an_update_keeps_the_last_statistics(runner_of: Callable[..., AlgorithmRunner]) -> None:
    """APPO and IMPALA report NaN then (Ray 2.60)."""
    runner = runner_of((64, 0.5), (64, math.nan), (128, 0.25))
    assert [runner.train().learner["total_loss"] for _ in range(3)] == [0.5, 0.5, 0.25]


def test_a_loss_of_an_update_that_is_not_finite_ends_the_trial(runner_of: Callable[..., AlgorithmRunner]) -> None:
    runner = runner_of((64, 0.5), (128, math.inf))
    runner.train()
    with pytest.raises(NonFiniteError, match="total_loss=inf"):
        runner.train()
