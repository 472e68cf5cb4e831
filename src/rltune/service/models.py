"""The bodies of REST's requests and responses, as OpenAPI describes them."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import TypedDict

from rltune.config.validation import NAME
from rltune.service.documents import SweepSummary, Time
from rltune.service.submissions import GROUP, STATES

State = Annotated[str, Field(json_schema_extra={"enum": [*STATES]})]
SweepName = Annotated[str, Field(json_schema_extra={"pattern": f"^(?!latest$){NAME}$"})]
Overrides = Annotated[list[str], Field(description="Settings as they are typed after `rltune run`.")]


class RequestBody(BaseModel):
    """The body of a request, in which an unknown key or a value of another type is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def check_text(cls, body: Any) -> Any:
        """Refuse NaN, infinity and half of a surrogate pair, because JSON responses cannot contain them."""
        json.dumps(body, ensure_ascii=False, allow_nan=False, default=repr).encode()
        return body


class SubmitBody(RequestBody):
    """The settings of a sweep, as they are typed after ``rltune run``; none are an empty list. A null name is made.

    The patterns only describe what `rltune.service.sweep_service` checks, whose errors say more.
    """

    overrides: Overrides
    name: Annotated[SweepName | None, Field(description="Its name; null has one made.")] = None
    group: Annotated[
        Annotated[str, Field(json_schema_extra={"pattern": f"^{GROUP}$"})] | None,
        Field(description="A name that is shared by sweeps which belong together."),
    ] = None


class CheckBody(RequestBody):
    """The settings of a sweep that is checked and not submitted, as for a submission."""

    overrides: Overrides
    name: Annotated[SweepName | None, Field(description="Its name; null has one made.")] = None


class CheckDescription(TypedDict):
    """The plan of a sweep that could be submitted: what it costs at most, as ``rltune run check=true`` has it."""

    name: Annotated[str | None, Field(description="Its name; null if none was given, so that one would be made.")]
    overrides: Overrides
    algorithm: Annotated[str, Field(description="What it trains.")]
    environment: Annotated[str, Field(description="The id of the environment in which it trains.")]
    policies: Annotated[dict[str, str], Field(description="The policy of each agent, if there are several agents.")]
    seed: Annotated[int, Field(description="Its seed.")]
    searched: Annotated[dict[str, str], Field(description="The ranges of the searched parameters by their names.")]
    fixed: Annotated[dict[str, Any], Field(description="The values of the parameters that the space fixes.")]
    normalised: Annotated[list[str], Field(description="What is normalised.")]
    trials: Annotated[int, Field(description="How many trials it has at most.")]
    search_env_steps: Annotated[int, Field(description="The environment steps of the search at most.")]
    certification_runs: Annotated[int, Field(description="How many trainings the certification has at most.")]
    certification_env_steps: Annotated[int, Field(description="The environment steps of these.")]
    score_episodes: Annotated[int, Field(description="The episodes that score reports, at most.")]
    score_env_steps: Annotated[int | None, Field(description="The environment steps of these; null if unknown.")]
    notes: Annotated[list[str], Field(description="What trains although it may surprise.")]


class ResumeBody(RequestBody):
    """The settings that change from now on, such as ``budget.trials=40``."""

    overrides: Overrides = []


class RetryBody(RequestBody):
    """The numbers of the failed trials to try again, null means all of them, and the settings that change then."""

    trials: list[int] | None = None
    overrides: Overrides = []


class EnqueueBody(RequestBody):
    """The values of a configuration by the names of the searched parameters; the searcher draws the others."""

    space: Annotated[dict[str, Any], Field(json_schema_extra={"minProperties": 1})]


class EventDescription(TypedDict):
    """A change of a submission's state: it was queued, its driver was started, or that driver has ended."""

    at: Annotated[Time | None, Field(description="When.")]
    state: Annotated[State, Field(description="The state from then on; a lost driver is followed by queued.")]
    reason: Annotated[str | None, Field(description="Why; null if there is nothing to say.")]


class SweepDescription(TypedDict):
    """A submitted sweep: its row of the queue, and what ``rltune list json=true`` has of it. Times are in UTC."""

    id: Annotated[int, Field(description="An earlier submission has a smaller one.")]
    name: Annotated[str, Field(description="The sweep's name.")]
    state: Annotated[State, Field(description="Its state, a word for programs.")]
    in_words: Annotated[str, Field(description="Its state for people, such as its position in the queue.")]
    starting: Annotated[bool, Field(description="Whether its driver was started and has not begun to work yet.")]
    stopping: Annotated[bool, Field(description="Whether its driver was asked to stop and has not ended yet.")]
    reason: Annotated[str | None, Field(description="Why it is in this state; null if there is nothing to say.")]
    group: Annotated[str | None, Field(description="The group that it was submitted with.")]
    queue: Annotated[int | None, Field(description="Its position in the queue, from 1; null if it does not wait.")]
    overrides: Overrides
    submitted: Annotated[Time | None, Field(description="When it was submitted.")]
    begun: Annotated[Time | None, Field(description="When its first driver was started; null before that.")]
    ended: Annotated[Time | None, Field(description="When its last driver ended; null while it waits or runs.")]
    attempts: Annotated[int, Field(description="How many drivers were started.")]
    last_end: Annotated[
        EventDescription | None, Field(description="How the last driver ended that has ended; null before that.")
    ]
    sweep: Annotated[
        SweepSummary | None, Field(description="Null before a driver has begun it, and if its ledger is unreadable.")
    ]
    unreadable: Annotated[str | None, Field(description="Why its ledger cannot be read, such as damage.")]
    stale_since: Annotated[Time | None, Field(description="Since when its ledger does not answer.")]
    report: Annotated[bool, Field(description="Whether its folder has a report.")]


class ComparedSweep(TypedDict):
    """The winner of a sweep in a comparison."""

    name: Annotated[str, Field(description="The sweep's name.")]
    winner: Annotated[str, Field(description="Its algorithm and trial.")]
    score: Annotated[float, Field(description="The median over seeds if it was certified, else over episodes.")]
    low: Annotated[float | None, Field(description="The lower end of the score's interval; null without one.")]
    high: Annotated[float | None, Field(description="The upper end of the score's interval; null without one.")]
    scores: Annotated[list[float], Field(description="The score of each certified seed; empty without any.")]
    num_pairs: Annotated[int, Field(description="How many seeds are compared with the first sweep's.")]
    num_wins: Annotated[int, Field(description="On how many of them it did better.")]
    wins_needed: Annotated[int | None, Field(description="How many make it better; null for too few seeds.")]
    verdict: Annotated[str, Field(description="better, or empty where it cannot be said.")]
    cost: Annotated[dict[str, float], Field(description="As in the sweep's result.")]
    measured: Annotated[str, Field(description="How the score was measured, for a person.")]


class ComparisonDescription(TypedDict):
    """The winners of sweeps on one environment, each compared with the first: what ``rltune compare`` has."""

    environment: Annotated[str, Field(description="The environment's id.")]
    objective: Annotated[str, Field(description="The name of the score, with its direction if less is better.")]
    score: Annotated[str, Field(description="The name of the score alone.")]
    direction: Annotated[str, Field(description="Which scores are better.", json_schema_extra={"enum": ["max", "min"]})]
    sweeps: Annotated[list[ComparedSweep], Field(description="In the order in which they were named.")]
    notes: Annotated[list[str], Field(description="What else differs between the sweeps.")]


# The parts of an error, as in `RltuneError.to_dict`. TypedDict's functional form is used, because the keyword `try`
# cannot be a class attribute.
Refusal = TypedDict(
    "Refusal",
    {
        "error": str,
        "key": str | None,
        "value": str | int | float | bool | None,
        "allowed": str,
        "try": str,
        "exit_code": int,
    },
)
