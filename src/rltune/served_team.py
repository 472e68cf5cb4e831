"""The registered policies of several agents inside MLflow, as `served` is for one: no pickle, no rltune, no ray.

``team.model_arguments`` puts the model together. Runs in whatever process loads the model.
"""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import mlflow.models
import numpy as np
from mlflow.pyfunc import PythonModel


def _reader() -> ModuleType:
    """The model's own bundle_reader.py, by path: two models in one process must not share the first one's."""
    here = Path(__file__).resolve().parent
    path = next(p for p in (here / "code" / "bundle_reader.py", here / "bundle_reader.py") if p.is_file())
    spec = importlib.util.spec_from_file_location("rltune_bundle_reader", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TeamModel(PythonModel):
    """Batches of observations by agent in, actions by agent out; deterministic."""

    def load_context(self, context: Any) -> None:
        """Read the bundles among the model's artifacts."""
        folder, reader = Path(context.artifacts["policy"]), _reader()
        self._owners: dict[str, str] = json.loads((folder / "policy.json").read_text(encoding="utf-8"))["owners"]
        self._policies = {name: reader.load(folder / "policies" / name) for name in set(self._owners.values())}

    # The hint is not the dict that comes: MLflow (3.17) warns, in red, of no hint, of dicts and of Any.
    def predict(
        self, context: Any, model_input: np.ndarray, params: dict[str, Any] | None = None
    ) -> dict[str, np.ndarray]:
        """Act on a batch.

        Args:
            context: Not needed.
            model_input: A dict of observations (n, ...) by agent, any of them; one observation is a batch of one.
            params: Not needed.

        Returns:
            Actions (n, ...) of the same agents.
        """
        by_agent: dict[str, Any] = model_input  # type: ignore[assignment]
        actions = {}
        for agent, given in by_agent.items():
            policy, obs = self._policies[self._owners[agent]], np.asarray(given)
            shape = tuple(policy.spaces["observation"].get("shape", ()))
            actions[agent] = np.asarray(policy.act(obs[None] if obs.shape == shape else obs))
        return actions


mlflow.models.set_model(TeamModel())
