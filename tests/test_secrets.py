"""A secret shows no login, and what leaves the process as text has none, whatever signs a password holds."""

from __future__ import annotations

import copy
import json
import pickle
import random
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from urllib.parse import quote

import pytest
from composing import compose
from omegaconf import OmegaConf

import rltune
from rltune.config.schema import StudyConfig, TrackingConfig
from rltune.config.validation import parse_config
from rltune.errors import ConfigError, RltuneError, describe_exception
from rltune.secrets import Secret, conceal, lacks_login, redact, redact_error, reveal

ADDRESS = "postgresql+psycopg://me:s3cret/pass word@db.example:5432/rl"
SHOWN = "postgresql+psycopg://***@db.example:5432/rl"
SIGNS = "/ @:#%'\"\\?&=+,;$<>{}[]()|^~`!*üß中§"
LEFT, RIGHT = "umbrella", "xylophone"  # They stand in no other text.

# The modules that open a connection, and `starting`, which composes settings anew.
REVEALING = {
    *("checkpoints/clients.py", "cli/application/command.py", "driver/starting.py", "ledger/database.py"),
    *("tracking/mlflow_runs.py", "tracking/model_registry.py"),
    *("tracking/mlflow_client.py", "tracking/notification.py"),
}

# A program that types logins into everything that a library may quote them in.
PROGRAM = """
import json, logging, sys, threading, warnings
from pathlib import Path
from urllib.parse import quote
from rltune.errors import StudyError
from rltune.secrets import conceal, filter_output, reveal

filter_output("stdout", "stderr")
passwords = json.loads(sys.argv[1])
for number, password in enumerate(passwords):
    address = conceal(f"postgresql+psycopg://me:{password}@db.example/rl")
    quoted = [reveal(address), f"{password!r} refused", quote(password), json.dumps(password), password.split("/")[-1]]

    def fail():
        try:
            raise OSError(quoted[number % len(quoted)])
        except OSError as error:
            raise StudyError(f"study.storage={reveal(address)}: {quoted}") from error

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    warnings.warn(f"slow answer of {quoted[0]}, {quoted[2]}", stacklevel=1)
    logging.getLogger("driver").warning("retrying %s", quoted)
    print(quoted, f"{address}", address)
    print(*quoted, sep="\\n", file=sys.stderr)
fail()
"""


def draw_passwords(count: int) -> list[str]:
    draw = random.Random(0)
    return [LEFT + "".join(draw.choices(SIGNS, k=draw.randint(1, 6))) + RIGHT for _ in range(count)]


def test_no_output_log_warning_or_traceback_tells_a_login() -> None:
    command = [sys.executable, "-c", PROGRAM, json.dumps(draw_passwords(300))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    lines = (done.stdout + done.stderr).splitlines()
    for kind in ("Exception in thread", "direct cause of the following", "UserWarning", "retrying", "StudyError"):
        assert any(kind in line for line in lines), kind
    assert [line for line in lines if LEFT in line or RIGHT in line] == []
    assert done.stdout.count("postgresql+psycopg://***@db.example/rl") >= 300


@pytest.mark.parametrize("password", draw_passwords(40))
def test_an_error_tells_no_login_in_any_of_its_forms(password: str) -> None:
    address = conceal(f"postgresql+psycopg://me:{password}@db.example/rl")
    foreign = OSError(f"{reveal(address)}: {password!r}, {quote(password, safe='')}")
    error = ConfigError("study.storage", reveal(address), f"is not {password}", password, f"not {password}")
    texts = [str(error), error.pretty(), json.dumps(error.to_dict()), describe_exception(foreign), repr(error)]
    texts += [str(error.key), str(error.value), str(pickle.loads(pickle.dumps(error))), redact(str(foreign))]
    assert [text for text in texts if LEFT in text or RIGHT in text] == []


@pytest.mark.parametrize(
    "show",
    [
        *(str, repr, "{}".format, "{!r}".format, "%s".__mod__, "".join, json.dumps, lambda secret: secret + ""),
        *(lambda secret: secret.strip(), lambda secret: str([secret]), lambda secret: str({"a": secret})),
        *(lambda secret: str(copy.deepcopy(secret)), lambda secret: str(pickle.loads(pickle.dumps(secret)))),
        *(lambda secret: str(pickle.dumps(secret)), lambda secret: str(copy.copy(secret))),
    ],
)
def test_a_secret_shows_no_login(show: object) -> None:
    secret = conceal(ADDRESS)
    text = show(secret)  # type: ignore[operator]
    assert "s3cret" not in text
    assert "pass word" not in text
    assert "***@db.example" in text


def test_only_reveal_returns_the_address_whole() -> None:
    secret = conceal(ADDRESS)
    assert isinstance(secret, Secret)
    assert (secret, reveal(secret), reveal("plain")) == (SHOWN, ADDRESS, "plain")
    assert conceal(secret) is secret
    assert reveal(copy.deepcopy(secret)) == SHOWN


def test_addresses_are_revealed_only_where_a_connection_is_opened() -> None:
    package = Path(rltune.__file__).parent
    files = {path: path.relative_to(package).as_posix() for path in package.rglob("*.py") if path.stem != "secrets"}
    assert {name for path, name in files.items() if re.search(r"\breveal\(", path.read_text())} == REVEALING


def test_an_address_read_back_lacks_its_login() -> None:
    assert not lacks_login(conceal(ADDRESS))
    assert lacks_login(pickle.loads(pickle.dumps(conceal(ADDRESS))))


@pytest.mark.parametrize("address", ["http://h:5000/x", "sqlite:///a.db", "http://me@h", "http://***@h", "me:x@h", ""])
def test_an_address_without_a_login_is_no_secret(address: str) -> None:
    assert type(conceal(address)) is str
    assert conceal(address) == address


@pytest.mark.parametrize("value", ["a b", "x&y=1", "s3cret"])
def test_a_password_in_the_query_is_concealed(value: str) -> None:
    secret = conceal(f"postgresql://me@h/rl?sslmode=require&password={value}")
    assert secret.startswith("postgresql://me@h/rl?sslmode=require&password=***")
    assert value.split("&")[0] not in secret.partition("=***")[2]


def test_settings_hold_secrets_and_their_copies_none() -> None:
    config = parse_config(compose("run", f"study.storage='{ADDRESS}'", "notify=http://h.example/T0/hook"))
    config.tracking = TrackingConfig(["mlflow"], "http://me:s3cret@h")
    addresses = (config.study.storage, config.tracking.uri, config.notify)
    assert [reveal(address or "") for address in addresses] == [
        *(ADDRESS, "http://me:s3cret@h", "http://h.example/T0/hook")
    ]  # fmt: skip
    assert [reveal(address or "") for address in vars(replace(config, seed=3))["study"].__dict__.values()] == [ADDRESS]
    texts = [repr(config), str(asdict(config)), str(pickle.dumps(config)), OmegaConf.to_yaml(asdict(config))]
    assert [text for text in texts if "s3cret" in text or "T0" in text] == []


def test_a_database_is_a_secret_however_its_settings_are_made() -> None:
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(StudyConfig), {"storage": ADDRESS}))
    assert isinstance(config, StudyConfig)
    assert reveal(config.storage or "") == ADDRESS
    assert "s3cret" not in repr(StudyConfig(ADDRESS))


def test_a_short_password_is_hidden_in_its_address() -> None:
    address = conceal("http://me:a b@h/x")
    assert "a b@" not in RltuneError(f"no answer from {reveal(address)}").what
    assert "pw" not in redact_error(conceal("http://me:pw/@h"), "cannot resolve 'pw'")
