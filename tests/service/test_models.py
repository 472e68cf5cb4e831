"""Bodies are what the models say, and what OpenAPI says of REST holds for any request that schemathesis makes up."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from ended import write_sweep
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rltune.service.models import EnqueueBody, RetryBody, SubmitBody
from rltune.service.processes import Ending
from tests.service.serviced import TOKEN, Serviced, run_service

BEARER = {"Authorization": f"Bearer {TOKEN}"}
NAMES = ("ended", "running", "waiting", "stopped", "nope")
FEW: Any = {  # For each operation, and the same each time.
    "max_examples": 25,
    "derandomize": True,
    "database": None,
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
}


def fill_queue(service: Serviced) -> None:
    """Leave a sweep in each state."""
    for name in NAMES[:-1]:
        service.sweeps.submit([], name)
        if name == "ended":
            service.sweeps.dispatcher.step()
            service.processes.endings[name] = Ending(0)
            write_sweep(service.sweeps.folder.sweeps / name, 3, None, "complete")
        if name != "waiting":
            service.sweeps.dispatcher.step()
    service.sweeps.stop("stopped")


def test_openapi_names_the_allowed_names_and_groups() -> None:
    properties = SubmitBody.model_json_schema()["properties"]
    name, group = (properties[key]["anyOf"][0]["pattern"] for key in ("name", "group"))
    for word, is_name, is_group in (
        ("a", True, True), (".a", False, True), ("latest", False, True), ("latest-1", True, True), ("", False, False),
        (100 * "a", True, True), (101 * "a", False, True), (256 * "a", False, False), ("a b", False, False),
    ):  # fmt: skip
        assert (bool(re.search(name, word)), bool(re.search(group, word))) == (is_name, is_group), word


def test_openapi_says_that_a_configuration_has_a_value() -> None:
    assert EnqueueBody.model_json_schema()["properties"]["space"]["minProperties"] == 1


@pytest.mark.parametrize("space", [{"lr": math.nan}, {"lr": math.inf}, {"name": "\ud800"}, [], None])
def test_a_body_that_no_response_could_repeat_is_refused(space: Any) -> None:
    with pytest.raises(ValidationError):
        EnqueueBody.model_validate({"space": space})


def test_a_wrong_type_or_an_unknown_key_is_refused() -> None:
    assert RetryBody.model_validate({"trials": [3]}).trials == [3]
    for body in ({"trials": ["3"]}, {"trials": 3}, {"trial": [3]}):
        with pytest.raises(ValidationError):
            RetryBody.model_validate(body)


@pytest.mark.nightly
@pytest.mark.slow
def test_no_made_up_request_meets_a_fault_or_an_answer_that_is_not_documented(tmp_path: Path) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    with run_service(tmp_path / "outputs") as service:
        fill_queue(service)
        api = schemathesis.openapi.from_url(f"{service.address}/api/openapi.json", headers=BEARER)
        # A setting that no schema can know to be wrong is refused as well.
        unknowable = [schemathesis.checks.CHECKS.get_one("positive_data_acceptance")]
        operations = [result.ok() for result in api.get_all_operations()]
        assert len(operations) == 16
        for operation in operations:

            @settings(**FEW)
            @given(case=operation.as_strategy(), name=st.sampled_from(NAMES))
            def send(case: Any, name: str) -> None:
                if "name" in case.path_parameters:
                    case.path_parameters["name"] = name
                case.call_and_validate(headers=BEARER, excluded_checks=unknowable)

            send()
