"""The schema of the description of a sweep, which `rltune.views.description` makes, as OpenAPI describes it.

Nothing is checked against it when a request is answered: a ledger of an earlier version may lack a key. A key that
starts with the name of a metric of the user's own is in no schema.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

SWEEP_STATES = ("running", "complete", "stopped", "interrupted", "failed")
TRIAL_STATES = ("waiting", "running", "complete", "pruned", "failed", "interrupted")
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Params = Annotated[dict[str, Any], Field(description="Values by the names of the searched parameters.")]


class TrialCounts(TypedDict):
    """How many trials of the search there are."""

    planned: Annotated[int | None, Field(description="Of the budget; null before the sweep has settings.")]
    ended: Annotated[int, Field(description="Those that do not run or wait any more.")]
    total: Annotated[int, Field(description="Those that have been proposed.")]
    complete: Annotated[int, Field(description="Those that have trained for the whole budget.")]
    pruned: Annotated[int, Field(description="Those that the stopping rule has stopped, or that have diverged.")]
    failed: Annotated[int, Field(description="Those that have ended with an error.")]
    interrupted: Annotated[int, Field(description="Those that have not ended, and that no worker trains.")]
    running: Annotated[int, Field(description="Those that train, or wait for a worker.")]


class BestTrial(TypedDict):
    """The trial with the best score of the search."""

    trial: Annotated[int, Field(description="Its number.")]
    score: Annotated[float | None, Field(description="The mean of the episodes of the last twentieth of the budget.")]
    params: Params


class Episodes(TypedDict):
    """The winner on fresh episodes: their mean, and its 95% interval."""

    episodes: Annotated[int, Field(description="How many were played.")]
    mean: Annotated[float | None, Field(description="The mean of their scores.")]
    iqm: Annotated[float | None, Field(description="The mean of the middle half of their scores.")]
    low: Annotated[float | None, Field(description="The lower end of the interval; null where there is none.")]
    high: Annotated[float | None, Field(description="The upper end of the interval; null where there is none.")]
    metrics: NotRequired[Annotated[dict[str, Any], Field(description="The same of the metrics of the user's own.")]]


class Winner(TypedDict):
    """The policy that won."""

    name: Annotated[str, Field(description="The trial, or baseline.")]
    trial: Annotated[int | None, Field(description="Its number; null for a baseline that the search did not try.")]
    params: Params
    origin: Annotated[str | None, Field(description="Where its values come from.")]
    objective: Annotated[float | None, Field(description="Its score of the search.")]
    checkpoint: Annotated[str, Field(description="The path of its files in the sweep's folder.")]
    target_steps: NotRequired[Annotated[int, Field(description="The steps after which it held the target.")]]
    acting: NotRequired[Annotated[dict[str, Any], Field(description="How it acts if it samples its actions.")]]
    evaluation: NotRequired[Annotated[Episodes, Field(description="What it scored after it was chosen.")]]


class Model(TypedDict):
    """The registered version of the winner's model."""

    name: Annotated[str, Field(description="The registered model's name.")]
    version: Annotated[str, Field(description="The version's number.")]
    uri: Annotated[str, Field(description="The address by which MLflow and rltune load it, such as models:/name/3.")]
    champion: Annotated[bool, Field(description="Whether it was the best version when it was registered.")]
    why: Annotated[str, Field(description="Why it became the champion, or did not.")]


class Tracking(TypedDict):
    """Where the sweep's runs are in MLflow."""

    uri: Annotated[str, Field(description="The tracking store, without its password.")]
    experiment: Annotated[str, Field(description="The id of the experiment.")]
    charts: Annotated[str | None, Field(description="The address that opens its trials as charts, the best first.")]


class CertifiedConfiguration(TypedDict):
    """A configuration that was trained anew on fresh seeds."""

    name: Annotated[str, Field(description="The trial, or baseline.")]
    trial: Annotated[int | None, Field(description="The trial's number; null for the baseline.")]
    seeds: Annotated[int, Field(description="How many seeds it has a score of.")]
    failed_seeds: Annotated[int, Field(description="How many trainings have failed.")]
    scores: Annotated[list[float | None], Field(description="The score of each seed.")]
    median: Annotated[float | None, Field(description="The median of the scores.")]
    low: Annotated[float | None, Field(description="The lower end of the median's interval; null without one.")]
    high: Annotated[float | None, Field(description="The upper end of the median's interval; null without one.")]
    worst: Annotated[float | None, Field(description="The worst score.")]
    difference: Annotated[float | None, Field(description="The mean difference to the baseline on the same seeds.")]
    num_pairs: Annotated[int, Field(description="How many seeds are compared with the baseline's.")]
    num_wins: Annotated[int, Field(description="On how many of them it did better than the baseline.")]
    num_ties: Annotated[int, Field(description="On how many of them it did as well.")]
    wins_needed: Annotated[int | None, Field(description="How many make it better; null for too few seeds.")]
    verdict: Annotated[str, Field(description="winner, better, both, or why it cannot win; may be empty.")]
    target_steps: NotRequired[Annotated[float | None, Field(description="The steps after which it held the target.")]]


class Certified(TypedDict):
    """The certification: the best configurations and the baseline, each trained on fresh seeds."""

    winner: Annotated[str | None, Field(description="The name of the configuration that won.")]
    seeds: Annotated[list[int], Field(description="The fresh seeds.")]
    episodes: Annotated[int, Field(description="How many episodes score one training.")]
    env_steps: Annotated[int, Field(description="The environment steps of one training.")]
    train_s: Annotated[float, Field(description="Seconds of training.")]
    policy: Annotated[dict[str, Any] | None, Field(description="The policy that was chosen among the winner's.")]
    configurations: Annotated[list[CertifiedConfiguration], Field(description="The best first.")]


class Cost(TypedDict):
    """What the sweep has cost."""

    env_steps: Annotated[int, Field(description="Environment steps of the search.")]
    env_steps_saved: Annotated[int, Field(description="Environment steps that early stopping has saved.")]
    train_s: Annotated[float, Field(description="Seconds of training of the search, summed over trials.")]
    wall_s: Annotated[float, Field(description="Seconds from start to end, of all its commands.")]
    slots: Annotated[float, Field(description="How many trials ran at once.")]
    efficiency: Annotated[float, Field(description="The share of slots times wall_s that was training.")]
    certify_env_steps: Annotated[int, Field(description="Environment steps of the certification.")]
    certify_train_s: Annotated[float, Field(description="Seconds of training of the certification.")]


class Trial(TypedDict):
    """A trial of the search."""

    trial: Annotated[int, Field(description="Its number.")]
    state: Annotated[str, Field(description="Its state.", json_schema_extra={"enum": [*TRIAL_STATES]})]
    score: Annotated[float | None, Field(description="By which it is ranked; null before its first report.")]
    second: Annotated[float | None, Field(description="Its value of the second objective; null without one.")]
    metrics: Annotated[dict[str, Any], Field(description="The newest values of the metrics of the user's own.")]
    env_steps: Annotated[int, Field(description="Its environment steps so far, of each seed.")]
    target_steps: Annotated[int | None, Field(description="The steps after which it held the target.")]
    train_s: Annotated[float, Field(description="Its seconds of training.")]
    origin: Annotated[str | None, Field(description="Where its values come from.")]
    params: Params
    reason: Annotated[str | None, Field(description="Why it ended or was interrupted; null while it runs.")]
    breaks: Annotated[str | None, Field(description="The constraint for which it cannot win.")]


class SweepSummary(TypedDict):
    """The keys of a sweep's description that lists have."""

    version: Annotated[int, Field(description="Raised when a key is renamed or removed, or changes its meaning.")]
    name: Annotated[str, Field(description="The sweep's name.")]
    status: Annotated[str, Field(description="Its state in its ledger.", json_schema_extra={"enum": [*SWEEP_STATES]})]
    algorithm: Annotated[str | None, Field(description="What it trains.")]
    environment: Annotated[str | None, Field(description="The id of the environment in which it trains.")]
    seed: Annotated[int | None, Field(description="Its seed.")]
    objective: Annotated[str, Field(description="The name of the score, with its direction if less is better.")]
    trials: Annotated[TrialCounts, Field(description="How many trials there are by their states.")]
    percent: Annotated[int | None, Field(description="The progress of the search; 100 only if it is complete.")]
    env_steps: Annotated[int, Field(description="The environment steps of all its trials and seeds.")]
    began: Annotated[Time | None, Field(description="When it began, ISO 8601 in UTC.")]
    wall_s: Annotated[float, Field(description="The seconds that its commands took together.")]
    best: Annotated[BestTrial | None, Field(description="Null before a score.")]
    winner: Annotated[Winner | None, Field(description="Null without one.")]
    model: Annotated[Model | None, Field(description="Null where nothing was registered.")]
    mlflow: Annotated[Tracking | None, Field(description="Null where the sweep has no runs in MLflow.")]
    certified: Annotated[Certified | None, Field(description="Null where nothing was certified.")]
    command: Annotated[str | None, Field(description="What to type for the same sweep again.")]
    folder: Annotated[str, Field(description="The path of its folder on the service's machine.")]


class SweepResult(SweepSummary):
    """The description of a sweep: what ``rltune show json=true`` prints."""

    reason: Annotated[str | None, Field(description="Why it ended early or without a winner; null while it runs.")]
    unregistered: Annotated[str | None, Field(description="Why the winner is not registered yet.")]
    cost: Annotated[Cost | None, Field(description="Null before its end.")]
    front: Annotated[list[dict[str, Any]] | None, Field(description="The Pareto front of two objectives.")]
    verdict: Annotated[str | None, Field(description="What the sweep says of its result, for a person.")]
    trials_best_first: Annotated[list[Trial], Field(description="All trials; those that can win come first.")]
