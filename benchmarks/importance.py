"""Count how often the report names the right parameters: python -m benchmarks.importance [simulations].

Two kinds of sweeps are simulated: the PPO sweep as shipped, whose training alone is simulated, and random searches over
four parameters, whose values are drawn evenly. Takes some minutes.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import cache, partial
from typing import Any

import numpy as np
import optuna
from optuna.trial import TrialState

from benchmarks import shared_settings
from benchmarks.records import make_record, write_record
from rltune.algorithms.arguments import build_search_space, values_of
from rltune.ledger.optuna_study import suggest, thin_curve
from rltune.records import Direction, Report, TrialRecord
from rltune.search.sampler_view import choose_view
from rltune.search.samplers import build_sampler, get_traits, quieten_optuna
from rltune.search.schedulers import GO_ON, build_stopping_rule
from rltune.search.seeds import derive_sampler_seed
from rltune.search.space import Space, parse_space
from rltune.views.importance import measure_importance

Simulated = tuple[Space, list[TrialRecord]]

ENV_STEPS = 100_000
REPORTS = 20


def _measure_rate(values: Mapping[str, Any], best: float = 6e-4) -> float:
    """Return the squared distance of a learning rate from the best one, in units of 0.4 decades, at most 6."""
    return min(((np.log10(values["lr"]) - np.log10(best)) / 0.4) ** 2, 6.0)


PPO_EFFECTS: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "nothing": lambda values: 0.0,
    "lr": lambda values: -_measure_rate(values),
    "lr, less": lambda values: -0.5 * _measure_rate(values),
    "lr above 1e-3": lambda values: -3.0 * (values["lr"] > 1e-3),
    "train_batch_size_per_learner": lambda values: -0.7 * np.log2(values["train_batch_size_per_learner"] / 512),
    "normalise": lambda values: 1.5 * ("rewards" in values["normalise"]),
    "lr by train_batch_size_per_learner": lambda values: (
        -_measure_rate(values, 3e-4 * values["train_batch_size_per_learner"] / 512)
    ),
}
"""What the end of a trial's curve depends on. Luck, and all of it for "nothing", has a standard deviation of 0.5."""

PPO_ROWS = [(kind, 48) for kind in PPO_EFFECTS] + [(kind, size) for size in (24, 12) for kind in ("nothing", "lr")]

SPACE = {name: ["uniform", -1.0, 1.0] for name in ("lr", "gamma", "clip")} | {"relu": ["choice", False, True]}
ALGO = {"name": "ppo"}
KINDS = ("nothing", "lr", "lr and relu, less", "lr where relu")


@cache
def _read_ppo() -> tuple[Space, list[dict[str, Any]]]:
    """Return PPO's space, and its portfolio by label."""
    algo, space = (shared_settings.read(group, "ppo.yaml") for group in ("algo", "space"))
    parsed = parse_space(space, values_of(algo, tuple(space)))
    return parsed, [parsed.encode(values) for values in shared_settings.read("portfolio", "ppo.yaml")["portfolio"]]


def simulate_ppo_sweep(kind: str, seed: int, num_trials: int = 48) -> Simulated:
    """Simulate a PPO sweep with the space, portfolio, searcher and halving of conf/, one trial after another.

    A curve rises towards its end, which depends on `PPO_EFFECTS` and on luck; each report has noise of 0.25.
    """
    space, portfolio = _read_ppo()
    searcher, scheduler = shared_settings.read("searcher", "rf.yaml"), shared_settings.read("scheduler", "asha.yaml")
    rng, view = np.random.default_rng([7, seed]), choose_view(get_traits(searcher["kind"]))
    rule = build_stopping_rule(scheduler["kind"], scheduler["args"], ENV_STEPS)
    with quieten_optuna():
        study = optuna.create_study(direction="maximize")
    trials = []
    for number in range(num_trials):
        study.sampler = build_sampler(searcher["kind"], searcher["args"], derive_sampler_seed(seed, number))
        if number < len(portfolio):
            study.enqueue_trial(dict(portfolio[number]))
        asked = study.ask()
        drawn = space.draw(lambda label, distribution: suggest(asked, label, distribution))  # noqa: B023
        values = space.decode(drawn)
        end = 6 + PPO_EFFECTS[kind](values) + 0.5 * rng.normal()
        record = TrialRecord(number, "COMPLETE", values, {}, drawn=drawn)
        for report in range(1, REPORTS + 1):
            mark, score = ENV_STEPS * report // REPORTS, end * (1 - np.exp(-3 * report / REPORTS))
            record.reports[mark] = float(score + 0.25 * rng.normal())
            if rule.decide(Report(number, mark, record.reports[mark])) != GO_ON and report < REPORTS:
                record = TrialRecord(number, "PRUNED", values, record.reports, drawn=drawn)
                break
        trials.append(record)
        shown = view(record, None)
        study.tell(asked, state=TrialState.FAIL)
        study.add_trial(
            optuna.trial.create_trial(
                state=TrialState[shown.state],
                value=shown.value if shown.state == "COMPLETE" else None,
                params=drawn,
                distributions={label: space.distributions()[label] for label in drawn},
                intermediate_values=thin_curve(shown.reports),
            )
        )
    return space, trials


def simulate_sweep(kind: str, seed: int, num_trials: int = 50) -> Simulated:
    """Simulate a random search; luck is about a seventh of the variance between trials, and all of it for "nothing"."""
    rng = np.random.default_rng(seed)
    lr, gamma, clip = rng.uniform(-1, 1, (3, num_trials))
    relu = rng.random(num_trials) < 0.5
    effects = {
        "lr": 1 - 3 * (lr - 0.3) ** 2,
        "lr and relu, less": 2 * lr + relu,
        "lr where relu": 2 * lr * np.where(relu, 1, -1),
    }
    ends = effects.get(kind, 0) + (0.5 if kind in effects else 1) * rng.normal(size=num_trials)
    curves = np.linspace(0.1, 1, 10) * ends[:, None] + 0.2 * rng.normal(size=(num_trials, 10))
    is_weak = curves[:, 2] < np.median(curves[:, 2])  # These are stopped at three tenths of the budget.
    trials = []
    for number, values in enumerate(zip(lr, gamma, clip, relu.tolist(), strict=True)):
        reports = {1000 * (mark + 1): float(score) for mark, score in enumerate(curves[number])}
        kept = dict(list(reports.items())[: 3 if is_weak[number] else 10])
        state = "PRUNED" if is_weak[number] else "COMPLETE"
        trials.append(TrialRecord(number, state, dict(zip(SPACE, values, strict=True)), kept))
    return build_search_space(ALGO, SPACE), trials


def _list_named(simulate: Callable[[str, int, int], Simulated], kind: str, num_trials: int, seed: int) -> list[str]:
    return measure_importance(*simulate(kind, seed, num_trials), Direction.MAX).outstanding


def count_named(
    pool: Executor, simulate: Callable[[str, int, int], Simulated], kind: str, num_trials: int, rounds: int
) -> dict[str, int]:
    """Return in how many of the simulated sweeps each parameter is named, and in how many any is, by ``any``."""
    named: Counter[str] = Counter()
    for outstanding in pool.map(partial(_list_named, simulate, kind, num_trials), range(rounds)):
        named.update([*outstanding, *["any"] * bool(outstanding)])
    return dict(named.most_common())


def table(record: Mapping[str, Any]) -> str:
    """Return the record as Markdown."""
    lines = ["| sweep | the scores depend on | names any | sweeps in which the report names |", "|---|---|---|---|"]
    for sweep, kinds in record["results"].items():
        for kind, named in kinds.items():
            counts = ", ".join(f"{name} {count}" for name, count in named.items() if name != "any")
            lines.append(f"| {sweep} | {kind} | {named.get('any', 0)} of {record['rounds']} | {counts or '-'} |")
    return "\n".join(lines)


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    results: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
    with ProcessPoolExecutor() as pool:
        for kind, size in PPO_ROWS:
            named = count_named(pool, simulate_ppo_sweep, kind, size, rounds)
            results[f"PPO as shipped, {size} trials"][kind] = named
            print(size, kind, named, file=sys.stderr, flush=True)
        for kind in KINDS:
            results["random search, 50 trials"][kind] = count_named(pool, simulate_sweep, kind, 50, rounds)
    write_record(make_record("importance", rounds, results))
