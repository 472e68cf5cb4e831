"""The same toy in a plain Ray Tune script, as its documentation writes it: ``benchmarks/soak.py``'s baseline.

``run`` starts it in this folder, ``resume`` takes ``Tuner.restore`` where Tune left a state, and starts anew elsewhere.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from ray import tune
from ray.air.integrations.mlflow import MLflowLoggerCallback

HERE = Path(__file__).resolve().parent
STEPS = 2000


class Toy(tune.Trainable):
    """100 environment steps an iteration; the objective is ``quality * env_steps / 1000``."""

    def setup(self, config: dict[str, Any]) -> None:
        """Begin."""
        self.env_steps = 0
        self.diary = Path(config["diary"]) / self.trial_id
        self.diary.parent.mkdir(exist_ok=True)

    def step(self) -> dict[str, Any]:
        """One iteration."""
        time.sleep(self.config["seconds"])
        self.env_steps += 100
        with self.diary.open("a") as file:
            file.write(f"{self.env_steps}\n")
        return {"objective": self.config["quality"] * self.env_steps / 1000, "env_steps": self.env_steps}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write it."""
        # Tune has it written where nobody looks and copies it then: the storm is told when to strike.
        mark = self.diary.parents[1] / "writing" / self.trial_id
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
        (Path(checkpoint_dir) / "half.bin").write_bytes(os.urandom(4096))
        time.sleep(self.config["saving"])
        (Path(checkpoint_dir) / "toy.json").write_text(json.dumps({"env_steps": self.env_steps}))
        mark.unlink(missing_ok=True)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Read it."""
        self.env_steps = json.loads((Path(checkpoint_dir) / "toy.json").read_text())["env_steps"]


def main() -> None:
    """Run or restore."""
    import ray

    from benchmarks.soak_plain import Toy as Trainable

    mode, trials, seconds, saving = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    here = Path.cwd()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    place = str(here / "plain")
    if mode == "resume" and tune.Tuner.can_restore(f"{place}/sweep"):
        tuner = tune.Tuner.restore(f"{place}/sweep", trainable=Trainable, resume_unfinished=True)
    else:
        space = {"quality": tune.uniform(0, 1), "seconds": seconds, "saving": saving, "diary": str(here / "trained")}
        tuner = tune.Tuner(
            Trainable,
            param_space=space,
            tune_config=tune.TuneConfig(metric="objective", mode="max", num_samples=trials),
            run_config=tune.RunConfig(
                name="sweep",
                storage_path=place,
                stop={"env_steps": STEPS},
                callbacks=[MLflowLoggerCallback(f"sqlite:///{here / 'mlflow.db'}", experiment_name="plain")],
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1, num_to_keep=2),
                verbose=0,
            ),
        )
    results = tuner.fit()
    rows = [r.metrics for r in results if r.metrics and r.metrics.get("env_steps") == STEPS]
    print(json.dumps({"trials": len(results), "finished": len(rows), "errors": results.num_errors}), flush=True)


if __name__ == "__main__":
    main()
