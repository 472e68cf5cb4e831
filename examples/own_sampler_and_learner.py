"""Sweep PPO with an env runner and a learner of one's own: a bonus for rare states, and one more term in the loss.

    python examples/own_sampler_and_learner.py [override...]

The settings name both as ``module:Class``, as an algo file of your own can. The weight of the new term is an argument
like any other: the space searches it. Every process must find this file, so that its folder is put on PYTHONPATH.
"""

import copy
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

SETTINGS = """algo=ppo env=cartpole +algo.env_runners.env_runner_cls=own_sampler_and_learner:CuriousSampler
+algo.learners.learner_class=own_sampler_and_learner:ModestLearner +algo.learners.learner_config_dict.modesty=1e-3
+space.modesty=[loguniform,1e-4,1e-2]"""


class CuriousSampler(SingleAgentEnvRunner):
    """Adds a bonus for rare states to the rewards that are learned from (Bellemare et al. 2016)."""

    def sample(self, **request):
        """Sample as RLlib does; change copies, because RLlib reads from its own what it reports as returns."""
        episodes = copy.deepcopy(super().sample(**request))
        self.visits = getattr(self, "visits", Counter())
        for episode in episodes:
            states = [tuple(state) for state in np.round(episode.get_observations()[1:], 1)]
            self.visits.update(states)
            bonus = [0.1 / self.visits[state] ** 0.5 for state in states]
            episode.set_rewards(new_data=episode.get_rewards() + np.array(bonus, np.float32))
        return episodes


class ModestLearner(PPOTorchLearner):
    """Keeps the policy from becoming too sure of itself."""

    def compute_loss_for_module(self, *, config, fwd_out, **batch):
        """Add the squares of the distribution's inputs to PPO's loss."""
        loss = super().compute_loss_for_module(config=config, fwd_out=fwd_out, **batch)
        return loss + config.learner_config_dict["modesty"] * fwd_out["action_dist_inputs"].square().mean()


if __name__ == "__main__":
    here, others = Path(__file__).absolute().parent, os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{here}{os.pathsep}{others}"
    sys.exit(subprocess.call([sys.executable, "-m", "rltune", "run", *SETTINGS.split(), *sys.argv[1:]]))
