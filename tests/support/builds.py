"""Builds and specifications with the facts that a request's check would have learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rltune.algorithms.build import Build
from rltune.envs.facts import EnvFacts
from rltune.envs.spec import EnvSpec
from rltune.envs.validation import check_env


def make_build(
    algo: Mapping[str, Any], spec: EnvSpec, vectorize: str = "auto", facts: EnvFacts | None = None, **others: Any
) -> Build:
    """Make a build whose facts are given, or come from a check of the environment."""
    return Build(algo, spec, vectorize, facts=facts or check_env(spec), **others)
