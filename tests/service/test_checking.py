"""A submission becomes composed settings without secrets; users' modules are imported in another process alone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import yaml

from rltune.errors import RltuneError, UnavailableError
from rltune.service.checking import LIMIT_S, CheckedSweep, check_change, check_submission, run_in_child
from tests.service.queueing import begin_sweep

HOOK = "https://hooks.slack.com/services/T0/B0/s3cret"
SLOW = "import time\ntime.sleep(60)\n"
ENV = """import gymnasium
class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}
    def step(self, action):
        return self.observation_space.sample(), 0.0, True, False, {}
gymnasium.register("Mine-v0", Env)
"""


def check(tmp_path: Path, *words: str, name: str | None = "one", settings: str = "") -> CheckedSweep:
    output_dir = str(tmp_path / "outputs")
    return check_change(words, output_dir, settings) if settings else check_submission(words, output_dir, name)


def test_a_sweep_gets_a_name_or_keeps_its_own(tmp_path: Path) -> None:
    made = check(tmp_path, "algo=dqn", "env=acrobot", name=None)
    assert made.name.startswith("acrobot-dqn-")
    assert made.overrides == ("algo=dqn", "env=acrobot")
    assert check(tmp_path, "name=mine", "seed=1", name=None) == check(tmp_path, "seed=1", name="mine")
    assert check(tmp_path, "name=mine", name="yours").name == "yours"
    forced = check(tmp_path, "++name=mine", name=None)
    assert (forced.name, forced.overrides) == ("mine", ())
    assert check(tmp_path, "++name=yours", "budget.trials=3", settings=forced.settings).name == "mine"


@pytest.mark.parametrize("name", ["1.10", "1e3", "007", "true", "null", "1_0", "nan"])
def test_a_name_that_looks_like_a_value_is_kept(tmp_path: Path, name: str) -> None:
    checked = check(tmp_path, name=name)
    again = check(tmp_path, "budget.trials=3", name=name, settings=checked.settings)
    assert (checked.name, again.name) == (name, name)
    assert check(tmp_path, f"name={name}", name=None).name == name or name == "null"


def test_settings_are_those_of_the_submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "conf" / "space" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("lr: [loguniform, 1.0e-4, 1.0e-3]\n")
    first = check(tmp_path, "space=mine")
    own.write_text("gamma: [choice, 0.9, 0.99]\n")
    again = check(tmp_path, "budget.trials=3", settings=first.settings)
    assert [*yaml.safe_load(first.settings)["space"]] == ["lr"]
    assert [*yaml.safe_load(again.settings)["space"]] == ["lr"]


def test_variables_stay_unresolved_in_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_HOOK", HOOK)
    kept = check(tmp_path, "notify='${oc.env:MY_HOOK}'").settings
    assert yaml.safe_load(kept)["notify"] == "${oc.env:MY_HOOK}"
    assert "s3cret" not in kept


ANSWERED = "shown-to-nobody"


@pytest.mark.parametrize(
    "word",
    [
        "seed=${oc.env:RLTUNE_PRIVATE}",
        "seed='${ oc.env : RLTUNE_PRIVATE }'",
        "seed=${oc.decode:${oc.env:RLTUNE_PRIVATE}}",
        "budget={trials:${oc.env:RLTUNE_PRIVATE}}",
        "space.lr=[uniform,${oc.env:RLTUNE_PRIVATE},1]",
        "seed=${oc.${engine}:RLTUNE_PRIVATE}",
        "name=${oc.env:RLTUNE_PRIVATE}",
        "+seed=${oc.env:RLTUNE_PRIVATE}",
        "tracking.uri=${oc.env:RLTUNE_PRIVATE}",
        "study.storage=${oc.env:RLTUNE_PRIVATE}",
        "storage=${oc.env:RLTUNE_PRIVATE}://bucket",
        "notify=${oc.env:RLTUNE_PRIVATE}",
    ],
)
def test_no_answer_has_the_value_of_a_variable(tmp_path: Path, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLTUNE_PRIVATE", ANSWERED)
    with pytest.raises(RltuneError) as refused:
        check(tmp_path, word, name=None)
    assert ANSWERED not in str(refused.value.to_dict())
    assert refused.value.key == word.partition("=")[0]


def test_a_name_with_an_interpolation_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLTUNE_PRIVATE", ANSWERED)
    with pytest.raises(RltuneError) as refused:
        check(tmp_path, name="${oc.env:RLTUNE_PRIVATE}")
    assert (refused.value.key, ANSWERED in str(refused.value.to_dict())) == ("name", False)


@pytest.mark.parametrize(
    "word",
    [
        f"notify={HOOK}",
        f"notify='{HOOK}'",
        "notify='curl https://me:s3cret@x.org/'",
        "notify='curl https://x.org/y -u maria:s3cret'",
        "tracking.uri=http://a:s3cret@c",
        "study.storage=postgresql+psycopg://me:s3cret@db/x",
        "++env.kwargs.url=http://a:s3cret@c",
    ],
)
def test_a_secret_in_plain_text_is_refused(tmp_path: Path, word: str) -> None:
    with pytest.raises(RltuneError) as refused:
        check(tmp_path, word)
    assert refused.value.key == word.partition("=")[0].lstrip("+")
    assert "s3cret" not in str(refused.value)


def test_a_secret_in_an_own_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "conf" / "experiment" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(f"# @package _global_\nnotify: {HOOK}\n")
    with pytest.raises(RltuneError) as refused:
        check(tmp_path, "experiment=mine")
    assert refused.value.key == "notify"


@pytest.mark.parametrize("word", ["budget.env_steps=9000", "seed=7", "budget.trials=2", "budget.trails=9", "algo=dqn"])
def test_another_sweeps_settings_are_no_resume(tmp_path: Path, word: str) -> None:
    settings = check(tmp_path, "budget.trials=12", "budget.env_steps=1000").settings
    begin_sweep(tmp_path / "outputs" / "one", settings)
    larger = check(tmp_path, "budget.trials=30", settings=settings)
    assert yaml.safe_load(larger.settings)["budget"]["trials"] == 30
    with pytest.raises(RltuneError) as refused:
        check(tmp_path, word, settings=settings)
    assert refused.value.key == word.partition("=")[0]


def test_a_resume_moves_a_sweep_to_another_cluster(tmp_path: Path) -> None:
    settings = check(tmp_path, "cluster.num_cpus=3").settings
    for address, of_sweep in (("head:6379", "head:6379"), ("local", None)):
        settings = check(tmp_path, f"cluster.address={address}", settings=settings).settings
        moved = yaml.safe_load(settings)["cluster"]
        assert (moved["address"], moved["num_cpus"]) == (of_sweep, None)


def check_mine(tmp_path: Path, limit_s: float = LIMIT_S) -> CheckedSweep:
    words = ("env=gym", "env.id=mine:Mine-v0", "env.name=mine")
    return run_in_child(check_submission, words, str(tmp_path / "outputs"), "one", limit_s=limit_s)


@pytest.mark.slow
def test_a_corrected_module_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(ENV.replace("0.0, True", "[][action], True"))
    with pytest.raises(RltuneError, match="IndexError"):
        check_mine(tmp_path)
    (tmp_path / "mine.py").write_text("print('a module that talks')\n" + ENV)
    os.utime(tmp_path / "mine.py", (1, 1))  # Python tells compiled files apart by size and whole seconds.
    assert check_mine(tmp_path).name == "one"


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["import os\nos._exit(3)\n", pytest.param("raise SystemExit(3)\n", marks=pytest.mark.nightly)]
)
def test_a_module_that_ends_the_process_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(module)
    with pytest.raises(RltuneError) as refused:
        check_mine(tmp_path)
    assert refused.value.exit_code == 2


def wait_long() -> CheckedSweep:
    time.sleep(60)
    raise AssertionError


@pytest.mark.slow
def test_a_check_that_is_late_names_a_command_without_the_paths_of_the_services_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rltune.formatting._given_start", ["rltune "])
    with pytest.raises(RltuneError) as refused:
        run_in_child(wait_long, limit_s=0.1)
    assert refused.value.fix.startswith("rltune run ")


class OwnError(UnavailableError):
    def __init__(self) -> None:
        super().__init__(": not now", "allowed", "fix", key="mine", value=[1, "a b"])


def refuse_in_own_words() -> CheckedSweep:
    raise OwnError


@pytest.mark.slow
def test_an_error_of_a_users_class_arrives_without_the_class() -> None:
    with pytest.raises(RltuneError) as refused:
        run_in_child(refuse_in_own_words)
    assert type(refused.value) is UnavailableError
    assert (refused.value.key, refused.value.exit_code) == ("mine", 75)
    assert refused.value.pretty() == OwnError().pretty()


@pytest.mark.slow
def test_a_module_that_hangs_is_refused_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(SLOW)
    began = time.monotonic()
    with pytest.raises(RltuneError) as refused:
        check_mine(tmp_path, limit_s=2.0)
    assert refused.value.exit_code == 2
    assert time.monotonic() - began < 40
