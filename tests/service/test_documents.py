"""The schema of a sweep's description has each key that a sweep has, and says what it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ended import make_certification, write_bounded, write_sweep
from pydantic import ConfigDict, TypeAdapter

from rltune.service import documents, models
from rltune.views.description import describe
from rltune.views.sweep_view import load_view

GOLDEN = Path(__file__).parents[1] / "golden" / "summary.json"


def list_types() -> dict[str, Any]:
    return {
        name: kind
        for module in (documents, models)
        for name, kind in vars(module).items()
        if getattr(kind, "__total__", None) is not None and kind.__module__ == module.__name__
    }


def list_properties(schema: Any) -> Iterator[tuple[str, Any]]:
    for nested in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from list_properties(nested)
    if isinstance(schema, dict) and isinstance(schema.get("properties"), dict):
        yield from schema["properties"].items()


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> TypeAdapter[Any]:
    """The schema of a result, in which an unknown key is an error."""
    for name, kind in list_types().items():
        if name not in ("CertifiedConfiguration", "Refusal"):
            monkeypatch.setattr(kind, "__pydantic_config__", ConfigDict(extra="forbid"), raising=False)
    return TypeAdapter(documents.SweepResult)


def test_the_schema_has_each_key_of_a_sweep(tmp_path: Path, strict: TypeAdapter[Any]) -> None:
    bounded = write_bounded(tmp_path / "bounded")
    certified = write_sweep(tmp_path / "certified", 3, make_certification())
    running = write_sweep(tmp_path / "running", 2, None, "running")
    ended = json.loads(GOLDEN.read_text().replace('"<float>"', "1.5").replace('"<int>"', "1"))
    for folder in (bounded, certified, running):
        content = json.loads(json.dumps(describe(load_view(folder))))
        strict.validate_python(content)
        # What a whole sweep has in its place.
        strict.validate_python(content | {key: ended[key] for key in ("winner", "certified", "cost", "model", "front")})


def test_each_field_says_what_it_is_and_which_words_it_has() -> None:
    schema = [TypeAdapter(kind).json_schema() for kind in list_types().values()]
    nameless = {name for name, kind in list_properties(schema) if not kind.get("description")}
    assert nameless <= {"error", "key", "value", "allowed", "try", "exit_code"}, "a refusal's are in docs/automation.md"
    sweep = TypeAdapter(documents.SweepSummary).json_schema()["properties"]
    assert sweep["status"]["enum"] == ["running", "complete", "stopped", "interrupted", "failed"]
    assert sweep["began"]["anyOf"][0]["format"] == "date-time"
    submission = TypeAdapter(models.SweepDescription).json_schema()["properties"]
    assert "queued" in submission["state"]["enum"]


def test_the_documentation_names_each_key() -> None:
    page = (Path(__file__).parents[2] / "docs" / "automation.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    documented = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert documented >= {*documents.SweepResult.__annotations__}
