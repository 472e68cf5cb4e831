"""Play an episode with an exported policy: onnxruntime and Gymnasium are enough. No torch, no Ray, no rltune.

    python -m sweeps.export policy=sweep:latest out=policy.onnx
    python examples/onnx_only.py [policy.onnx]

Observations go in as the environment gives them: the normaliser and the scaling of actions are in the file.
"""

import json
import sys

import gymnasium
import onnxruntime


def main(path: str = "policy.onnx") -> None:
    """Load the file, and let it act until the episode ends."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["rltune"])["info"]["env"]
    env = gymnasium.make(about["id"], **about.get("kwargs", {}))
    observation, _ = env.reset(seed=0)
    episode_return, steps, ended = 0.0, 0, False
    while not ended:
        (actions,) = session.run(["actions"], {"observations": observation[None]})  # a batch of one
        observation, reward, terminated, truncated, _ = env.step(actions[0])
        episode_return, steps, ended = episode_return + float(reward), steps + 1, terminated or truncated
    env.close()
    print(f"{path}: return {episode_return:g} in {steps} steps of {about['id']}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
