"""A toy trial whose checkpoints have a policy that can be registered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toy import ToyRunner, ToyTrial

from tests.policies.bundles import BOX, write_linear


class PolicyToyRunner(ToyRunner):
    """Writes a bundle by hand."""

    def save(self, folder: Path, info: Mapping[str, Any]) -> None:
        super().save(folder, info)
        write_linear(folder / "policy", BOX, dict(info["env"]))


class PolicyToyTrial(ToyTrial):
    """A trial over it."""

    def build_runner(self, seed: int) -> PolicyToyRunner:
        return PolicyToyRunner(self.task.params, seed, float(self.task.params.get("seconds", 0.0)))
