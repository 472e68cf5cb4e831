"""The recipes of deploy/: what they say composes, parses, and fits together. Slurm runs for real in test_slurm.py."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from composing import compose

from rltune.config.validation import parse_config
from tests.whole.recipes import DEPLOY, compose_command

ROOT = DEPLOY.parent
KUBERAY = ROOT / "tests/whole/kuberay"
LOCKED = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "requirements.lock").read_text(), re.MULTILINE))

pytestmark = [pytest.mark.fast, pytest.mark.nightly]


def read(name: str) -> Any:
    """The last document of a recipe."""
    *_, last = yaml.safe_load_all((DEPLOY / name).read_text())
    return last


# -- all of them --------------------------------------------------------------------------------------------------

COMMANDS = {
    "slurm.sbatch": {"NAME": "first", "ADDRESS": "n1:6379", "@": "algo=ppo env=cartpole output_dir=/shared"},
    "rayjob.yaml": {},
    "sky.yaml": {},
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_recipes_command_composes_and_may_be_typed_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLTUNE_STORAGE", "postgresql+psycopg://db.example/rl")
    values = COMMANDS[name]
    text = (DEPLOY / name).read_text()
    if name.endswith(".yaml"):
        recipe = read(name)
        text = recipe["run"] if name == "sky.yaml" else recipe["spec"]["entrypoint"]
        values = recipe.get("envs", {})
    words, config = compose_command(text, values)
    assert "resume=auto" in words
    assert config.name, "without a name it could not find what it has begun"


def test_every_page_of_a_recipe_is_there() -> None:
    page = (ROOT / "docs" / "clusters.md").read_text()
    assert {path.name for path in DEPLOY.iterdir()} == set(re.findall(r"`deploy/(.+?)`", page))


PAGE = [line.strip() for line in (ROOT / "docs" / "clusters.md").read_text().splitlines() if line.startswith("    ")]
TYPED = {"rltune", "ray", "sbatch", "docker", "kubectl", "sky", "export", "PGPASSWORD=$POSTGRES_PASSWORD"}


def test_the_page_has_no_command_that_is_not_looked_at() -> None:
    assert {line.split()[0] for line in PAGE} == TYPED


@pytest.mark.parametrize("line", [line for line in PAGE if line.startswith(("ray ", "PGPASSWORD", "sbatch ", "sky "))])
def test_a_command_of_the_page_is_understood(line: str) -> None:
    from ray.dashboard.modules.job.cli import submit
    from ray.scripts.scripts import start

    program, *words = shlex.split(line)
    if program == "sky":
        assert words[:3] == ["jobs", "launch", "deploy/sky.yaml"]
        given = dict(zip(words[3::2], (word.split("=")[0] for word in words[4::2]), strict=True))
        assert given["--env"] in read("sky.yaml")["envs"]
        assert given["--secret"] in read("sky.yaml")["secrets"]
        return
    if program == "ray" and words[0] == "start":
        start.make_context("ray start", words[1:])
        return
    if program == "ray":
        given = submit.make_context("ray job submit", words[2:]).params
        assert int(json.loads(given["runtime_env_json"])["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]) >= 10
        words = list(given["entrypoint"])
    (command,) = {"deploy/slurm.sbatch", "sweeps.run", "run"} & set(words)
    overrides = words[words.index(command) + 1 :]
    assert overrides
    parse_config(compose("run", *overrides))


# -- Kubernetes ---------------------------------------------------------------------------------------------------

# What KubeRay 1.5's reference lists, as far as we use it. It drops what it does not know, without a word.
RAYJOB = {
    "entrypoint", "runtimeEnvYAML", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished",
    "rayClusterSpec",
}  # fmt: skip
RAYCLUSTER = {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
HEAD = {"rayStartParams", "template"}
WORKERS = {"groupName", "replicas", "minReplicas", "maxReplicas"} | HEAD
POD = {"containers", "volumes", "terminationGracePeriodSeconds"}
CONTAINER = {"name", "image", "resources", "env", "volumeMounts"}


def test_the_rayjob_says_what_kuberay_understands() -> None:
    job = read("rayjob.yaml")
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    pods = [group["template"]["spec"] for group in groups]
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert set(job["spec"]) == RAYJOB
    assert set(cluster) == RAYCLUSTER
    assert [set(group) for group in groups] == [HEAD, WORKERS]
    assert all(set(pod) <= POD for pod in pods)
    assert all(set(container) == CONTAINER for pod in pods for container in pod["containers"])
    assert all(isinstance(value, str) for group in groups for value in group["rayStartParams"].values())
    assert "kueue.x-k8s.io/queue-name" in job["metadata"]["labels"]


def test_the_rayjob_goes_on_after_a_failure_with_what_a_volume_keeps() -> None:
    claim, job = yaml.safe_load_all((DEPLOY / "rayjob.yaml").read_text())
    cluster = job["spec"]["rayClusterSpec"]
    assert job["spec"]["backoffLimit"] > 0
    assert cluster["authOptions"] == {"mode": "token"}
    environment = yaml.safe_load(job["spec"]["runtimeEnvYAML"])["env_vars"]
    assert int(environment["RAY_JOB_STOP_WAIT_TIME_S"]) >= 10, "as long as a sweep saves its trials"
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    folder = re.search(r"output_dir=(\S+)", job["spec"]["entrypoint"])
    assert folder
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        (volume,) = pod["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        (container,) = pod["containers"]
        (mount,) = container["volumeMounts"]
        assert mount["name"] == volume["name"]
        kept = Path(mount["mountPath"])
        (state,) = container["env"]
        assert state["name"] == "XDG_STATE_HOME", "the key by which its own checkpoints are known"
        assert kept in Path(folder[1]).parents
        assert kept in Path(state["value"]).parents


def test_the_rayjob_is_valid_by_kuberays_own_schema() -> None:
    schema = json.loads(gzip.decompress((KUBERAY / "rayjob-v1.json.gz").read_bytes()))

    def close(part: Any, top: bool = False) -> None:
        """Refuse what is not named, as the API server warns of it."""
        if part.get("x-kubernetes-int-or-string"):
            part.pop("type", None)
        if "properties" in part and not top:
            part.setdefault("additionalProperties", False)
        known = {key: value for key, value in part.get("properties", {}).items() if not (top and key == "metadata")}
        for inner in (*known.values(), part.get("items"), part.get("additionalProperties")):
            if isinstance(inner, dict):
                close(inner)

    close(schema, top=True)
    errors = jsonschema.Draft202012Validator(schema).iter_errors(read("rayjob.yaml"))
    assert [f"{list(error.path)}: {error.message}" for error in errors] == []


STAGES = [  # instructions, by the stage's name
    [(one[0], one[1]) for one in re.findall(r"^([A-Z]+) (.+)$", stage, re.MULTILINE)]
    for stage in re.split(r"^(?=FROM )", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def copied(stage: int) -> set[str]:
    """What a stage takes of the checkout."""
    lines = [words.removeprefix("--chown=ray ") for name, words in STAGES[stage] if name == "COPY"]
    return {name for line in lines for name in line.split()[:-1]}


def test_the_image_has_the_ray_that_all_nodes_have() -> None:
    base = re.fullmatch(r"rayproject/ray:([\d.]+)-py(\d)(\d+) AS rltune", STAGES[0][0][1])
    assert base
    assert base[1] == read("rayjob.yaml")["spec"]["rayClusterSpec"]["rayVersion"] == LOCKED["ray"] == version("ray")
    assert (int(base[2]), int(base[3])) >= (3, 11)
    project, setup = PROJECT["project"], PROJECT["tool"]["setuptools"]
    needed = {"pyproject.toml", "requirements.lock", project["readme"], *project["license-files"]}
    assert copied(0) == needed | set(setup["package-dir"].values())


def test_the_image_copies_what_there_is_and_never_as_root() -> None:
    """Docker is on no machine that runs the tests: its file is read."""
    assert [stage[0][1].split() for stage in STAGES[1:]] == [["rltune", "AS", "tests"], ["rltune"]], (
        "the last one is built by default"
    )
    assert {name for stage in STAGES for name, _ in stage} <= {"FROM", "ENV", "WORKDIR", "COPY", "RUN", "CMD"}
    assert [name for name in copied(0) | copied(1) if not (ROOT / name).exists()] == []
    assert all(words.startswith("--chown=ray ") for stage in STAGES for name, words in stage if name == "COPY")
    made, entered = (name for name, words in STAGES[0] if words.endswith("/home/ray/rltune"))
    assert (made, entered) == ("RUN", "WORKDIR"), "a builder may make a WORKDIR that is not there as root"
    for stage in STAGES[:2]:
        (installed,) = (words for name, words in stage if name == "RUN" and words.startswith("pip "))
        extras = re.fullmatch(r"pip install --no-cache-dir -c requirements.lock -e '\.\[([\w,]+)\]'", installed)
        assert extras
        assert set(extras[1].split(",")) <= PROJECT["project"]["optional-dependencies"].keys()
    python, *words = json.loads(dict(STAGES[1])["CMD"])
    assert (python, words[:2]) == ("python", ["-m", "pytest"])


def test_the_image_of_the_tests_has_what_they_read() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("git knows what a checkout holds, and this is none")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    there = copied(0) | copied(1)
    assert {name.split("/")[0] for name in tracked if not name.startswith(".")} == there


# -- the servers --------------------------------------------------------------------------------------------------


@pytest.fixture
def services() -> dict[str, Any]:
    """The servers, with every variable as its default or an example."""
    text = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", (DEPLOY / "compose.yaml").read_text())
    read: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{(\w+)(:\?.*?)?\}", r"the \1", text))["services"]
    return read


def test_the_servers_commands_are_understood(services: dict[str, Any]) -> None:
    from mlflow.cli import server

    (*words,) = services["mlflow"]["command"]
    assert words[:2] == ["mlflow", "server"]
    given = server.make_context("mlflow server", words[2:]).params
    assert given["backend_store_uri"] == "postgresql+psycopg://rltune@postgres/mlflow"
    assert "mlflow:*" in given["allowed_hosts"].split(",")


def test_the_servers_find_each_other_and_nobody_else_finds_them(services: dict[str, Any]) -> None:
    recipe = read("compose.yaml")
    made = {services["postgres"]["environment"]["POSTGRES_DB"]}
    made |= set(re.findall(r"CREATE DATABASE (\w+)", json.dumps(recipe["configs"])))
    used = set(re.findall(r"@postgres/(\w+)", json.dumps(services)))
    assert used == {"mlflow"}
    assert made == {"rltune", "mlflow"}, "that of the ledgers, too"
    buckets = set(re.findall(r"/data/(\w+)", str(services["minio"]["command"])))
    assert set(re.findall(r"s3://(\w+)", json.dumps(services))) <= buckets
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        assert set(service.get("depends_on", ())) <= set(services)
    kept = {place.split(":")[0] for service in services.values() for place in service.get("volumes", ())}
    assert kept == set(recipe["volumes"])


def test_no_password_stands_in_the_recipe_and_none_is_left_out() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    for name, value in re.findall(r"(\w*(?:PASSWORD|SECRET\w*)): (.+)", text):
        assert value.startswith("${"), name
    assert set(re.findall(r"\$\{(\w+):\?", text)) == {"POSTGRES_PASSWORD", "MINIO_ROOT_PASSWORD"}


def test_the_servers_have_the_versions_that_are_known_to_work_together() -> None:
    pinned = dict(re.findall(r"([\w-]+)(?:\[\w+\])?==([\d.]+)", (DEPLOY / "compose.yaml").read_text()))
    assert set(pinned) == {"mlflow", "psycopg"}
    assert {name: LOCKED[name] for name in pinned} == pinned


@pytest.mark.skipif(
    not shutil.which("docker") or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode != 0,
    reason="docker compose is not installed",
)
def test_docker_compose_accepts_the_servers() -> None:
    env = {**os.environ, "POSTGRES_PASSWORD": "one word", "MINIO_ROOT_PASSWORD": "another word"}
    words = ["docker", "compose", "-f", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- shells -------------------------------------------------------------------------------------------------------


def test_skypilots_job_says_what_it_needs() -> None:
    job = read("sky.yaml")
    assert set(job) == {"name", "workdir", "resources", "file_mounts", "envs", "secrets", "setup", "run"}
    assert set(job["resources"]) == {"cpus", "use_spot", "job_recovery"}
    used = set(re.findall(r"\$(\w+)|oc\.env:(\w+)", job["run"]))
    assert {first or second for first, second in used} == set(job["envs"]) | set(job["secrets"])


@pytest.mark.parametrize("script", ["slurm.sbatch", "setup", "run"])
def test_the_shell_reads_the_scripts(script: str) -> None:
    text = read("sky.yaml")[script] if script in ("setup", "run") else (DEPLOY / script).read_text()
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_before_its_time_limit_slurm_tells_the_sweep_and_not_ray() -> None:
    """One that is not found is told by SIGKILL."""
    (pattern,) = re.findall(r"pkill -TERM -f '(.+)'", (DEPLOY / "slurm.sbatch").read_text())
    program = Path(sysconfig.get_path("scripts")) / "rltune"
    sweep = subprocess.Popen([program, "run", "--help"], stdout=subprocess.DEVNULL)
    typed = ""
    while sweep.poll() is None and str(program) not in typed:
        typed = Path(f"/proc/{sweep.pid}/cmdline").read_text().replace("\0", " ")
    assert sweep.wait() == 0
    assert re.search(pattern, typed), typed
    ray = [sys.executable, f"{program.parent}/ray", "symmetric-run", "--", str(program), "run", "name=first"]
    assert not re.search(pattern, " ".join(ray))
