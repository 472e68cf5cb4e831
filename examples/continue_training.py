"""Train on from a sweep's winner with RLlib: weights, optimizer, settings and step count are the checkpoint's.

    python examples/continue_training.py [policy] [env_steps]

``policy`` is a sweep's winner (``sweep:latest``, ``sweep:<name>``), a trial (``sweep:<name>/7``) or a checkpoint's
folder; run it in the folder that holds ``outputs/``. RLlib's checkpoints run code when they are loaded, so one that
comes from an MLflow store (``models:``, ``runs:``) is taken only if you say so: ``load_algorithm(uri, trust=True)``.
"""

import sys
from pathlib import Path

import rltune


def main(uri: str = "sweep:latest", env_steps: str = "10000") -> None:
    """Train for so many environment steps more, and save the result where RLlib and this script find it again."""
    algorithm = rltune.load_algorithm(uri)  # an RLlib Algorithm; starts Ray
    steps, goal = 0, None
    while goal is None or steps < goal:
        sampled = algorithm.train()["env_runners"]
        steps = int(sampled["num_env_steps_sampled_lifetime"])  # counted from the trial's beginning
        goal = goal or steps - int(sampled["num_env_steps_sampled"]) + int(env_steps)
        mean = sampled.get("episode_return_mean", float("nan"))  # RLlib leaves it out until an episode has ended
        print(f"{steps} environment steps: mean return {mean:.1f}", flush=True)
    print("saved to", algorithm.save_to_path(Path("continued/algorithm").absolute()))
    algorithm.stop()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:3])
    except rltune.RltuneError as error:  # says what is wrong, what is allowed and what to type
        sys.exit(error.pretty())
