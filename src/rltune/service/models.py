"""The bodies of REST's requests and responses, as OpenAPI describes them."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import TypedDict

from rltune.config.validation import NAME
from rltune.service.submissions import ENDED, GROUP, QUEUED, RUNNING

State = Annotated[str, Field(json_schema_extra={"enum": [QUEUED, RUNNING, *ENDED]})]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


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

    overrides: list[str]
    name: Annotated[str, Field(json_schema_extra={"pattern": f"^(?!latest$){NAME}$"})] | None = None
    group: Annotated[str, Field(json_schema_extra={"pattern": f"^{GROUP}$"})] | None = None


class CheckBody(RequestBody):
    """The settings of a sweep that is checked and not submitted, as for a submission."""

    overrides: list[str]
    name: Annotated[str, Field(json_schema_extra={"pattern": f"^(?!latest$){NAME}$"})] | None = None


class CheckDescription(TypedDict):
    """A sweep that could be submitted: its name, made if none was given, and its settings as they were typed."""

    name: str
    overrides: list[str]


class ResumeBody(RequestBody):
    """The settings that change from now on, such as ``budget.trials=40``."""

    overrides: list[str] = []


class RetryBody(RequestBody):
    """The numbers of the failed trials to try again; null means all of them."""

    trials: list[int] | None = None


class EnqueueBody(RequestBody):
    """The values of a configuration by the names of the searched parameters; the searcher draws the others."""

    space: Annotated[dict[str, Any], Field(json_schema_extra={"minProperties": 1})]


class EventDescription(TypedDict):
    """A change of a submission's state: it was queued, its driver was started, or that driver has ended."""

    at: Time | None
    state: State
    reason: str | None


class SweepDescription(TypedDict):
    """A submitted sweep: its row of the queue, and as ``sweep`` what ``rltune list json=true`` has of it.

    ``sweep`` is null until a driver has begun the sweep, and while its ledger is unreadable. Times are ISO 8601 in UTC:
    ``begun`` is when its first driver was started, of which there were ``attempts``, and ``last_end`` how the last of
    them ended that has ended.
    """

    id: int
    name: str
    state: State
    in_words: str
    starting: bool
    stopping: bool
    reason: str | None
    group: str | None
    queue: int | None
    overrides: list[str]
    submitted: Time | None
    begun: Time | None
    ended: Time | None
    attempts: int
    last_end: EventDescription | None
    sweep: dict[str, Any] | None
    unreadable: str | None
    stale_since: Time | None
    report: bool


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
