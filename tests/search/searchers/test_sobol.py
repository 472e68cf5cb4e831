"""The Sobol sequence; tests/conformance/test_searchers.py asks how it goes on and how even it is."""

from __future__ import annotations

import optuna

from rltune.search.samplers import build_sampler
from rltune.search.space import parse_space

SPACE = parse_space({"lr": ["loguniform", 1e-4, 1e-2], "layers": ["choice", [64], [64, 64]]}).distributions()


def propose(sweep_seed, count=5):
    study = optuna.create_study()
    points = []
    for number in range(count):
        study.sampler = build_sampler("qmc", {}, number, sweep_seed=sweep_seed)
        points.append(study.ask(SPACE).params)
    return points


def test_a_sweeps_seed_decides_the_sequence():
    assert propose(3) == propose(3)
    assert propose(3)[0] == propose(4)[0], "the first one is the trial's"
    assert all(one != other for one, other in zip(propose(3)[1:], propose(4)[1:], strict=True))
