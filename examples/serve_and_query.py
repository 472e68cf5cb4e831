"""Serve the champion over HTTP with MLflow, and play an episode by asking the server (no Ray, no rltune) for actions.

python examples/serve_and_query.py [models:/cartpole-ppo@champion] [5001]
"""

import os
import signal
import subprocess
import sys
import time

import requests

import rltune

uri, port = (*sys.argv[1:], *("models:/cartpole-ppo@champion", "5001")[len(sys.argv) - 1 :])
address = f"http://127.0.0.1:{port}"
options = ["-m", uri, "-h", "127.0.0.1", "-p", port, "--env-manager", "local"]
paths = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))  # MLflow looks for uvicorn there
command = [sys.executable, "-m", "mlflow", "models", "serve", *options]
server = subprocess.Popen(command, env=os.environ | {"PATH": paths}, start_new_session=True)
env, total, over = rltune.load_policy(uri).env(), 0.0, False
obs, _ = env.reset(seed=0)
try:
    while not over and server.poll() is None:
        try:
            reply = requests.post(f"{address}/invocations", json={"inputs": [obs.tolist()]}, timeout=10)
        except requests.ConnectionError:
            time.sleep(0.2)  # it is still starting
            continue
        reply.raise_for_status()
        (action,) = reply.json()["predictions"]
        obs, reward, terminated, truncated, _ = env.step(action)
        total, over = total + float(reward), terminated or truncated
    print(f"{uri} served on {address}: return {total:g}" if over else "the server ended; it said why")
finally:
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGTERM)
