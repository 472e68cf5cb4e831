"""Play one episode with a trained policy, in the environment that it was trained in. Ray is neither started nor needed.

    python examples/reuse_best.py [policy]

``policy`` is a registered model, a sweep's winner (``sweep:latest``, ``sweep:<name>``), a trial (``sweep:<name>/7``),
an MLflow run (``runs:/<id>``) or a checkpoint's folder. Run it in the folder of the sweep: ``mlflow.db`` and
``outputs/`` are looked up there.
"""

import sys

import rltune


def main(uri: str = "models:/cartpole-ppo@champion") -> None:
    """Load the policy and let it act, one observation at a time, until the episode ends."""
    policy = rltune.load_policy(uri)
    env = policy.env()  # render_mode="human" shows it in a window
    observation, _ = env.reset(seed=0)
    policy.reset()  # a recurrent policy forgets the episode before; others have nothing to forget
    episode_return, steps, ended = 0.0, 0, False
    while not ended:
        action = policy.act(observation)  # also takes a batch; deterministic=False samples as training does
        observation, reward, terminated, truncated, _ = env.step(action)
        episode_return, steps, ended = episode_return + float(reward), steps + 1, terminated or truncated
    env.close()
    print(f"{uri}: return {episode_return:g} in {steps} steps of {policy.info['env']['id']}")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:2])
    except rltune.RltuneError as error:  # says what is wrong, what is allowed and what to type
        sys.exit(error.pretty())
