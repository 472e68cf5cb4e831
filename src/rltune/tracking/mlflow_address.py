"""Spell where MLflow shows a sweep's trials: the address of their charts, and the command that serves a local store.

MLflow is not imported. Runs anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

from rltune.config.uris import is_web
from rltune.formatting import find_program
from rltune.records import Direction

ENTRY_TAG = "rltune.entry"  # Identifies a trial's run among all runs of the MLflow store.
FIRST = "compare/"  # See `rltune.tracking.mlflow_tracker`.
# With this parameter, MLflow's page opens in its view for model training, and not in the one for prompts.
AS_TRAINING = {"workflowType": "machine_learning"}
LOCAL_SERVER = "http://127.0.0.1:5000"  # Where `mlflow ui` answers that nobody has given another port.


def make_charts_address(store: Mapping[str, str] | None, key: str, direction: Direction) -> str | None:
    """Make the address that opens a sweep's trials as charts in MLflow, the best first.

    The trials are found by the sweep's key, so that another sweep of the same name is not among them, nor are the runs
    of the certification.

    Args:
        store: `SweepRecord.mlflow`, the store and the experiment that have the sweep's runs.
        key: The sweep's key.
        direction: Which scores are better.

    Returns:
        The address, for a local store of the server that `make_server_command` starts. None if there is no store yet,
        or if its page is not MLflow's own.
    """
    if not store or "://" not in store["uri"] or store["uri"].startswith("databricks"):
        return None
    server = LOCAL_SERVER
    if is_web(store["uri"]):
        parts = urlsplit(store["uri"])
        host = parts.netloc.rpartition("@")[2]  # A browser asks for the login.
        server = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
    return f"{server}/{make_charts_page(store['experiment'], key, direction)}"


def make_charts_page(experiment: str, key: str, direction: Direction) -> str:
    """Make the part of that address behind the server, by which MLflow's own pages link to each other."""
    query = {
        "searchFilter": f"tags.`{ENTRY_TAG}` LIKE '{key}/trials/%'",
        "orderByKey": f"metrics.`{FIRST}score`",
        "orderByAsc": "true" if direction is Direction.MIN else "false",
        "compareRunsMode": "CHART",
    }
    encoded = urlencode(query | AS_TRAINING, quote_via=quote)
    # As "Key=" the parameter's name would look like that of a secret, whose value `redact` hides in every text.
    return f"#/experiments/{experiment}/runs?{encoded.replace('Key=', 'Ke%79=')}"


def make_server_command(store: Mapping[str, str] | None) -> str | None:
    """Make the command that serves a store without a server of its own; None if the store needs none."""
    if not store or "://" not in store["uri"] or is_web(store["uri"]) or store["uri"].startswith("databricks"):
        return None
    if is_default_store(store["uri"]):
        return find_program("mlflow ui")
    return find_program(f"mlflow ui --backend-store-uri {store['uri']}")


def is_default_store(uri: str) -> bool:
    """Return whether MLflow uses this store by default, which is mlflow.db in the working directory."""
    return uri == f"sqlite:///{Path.cwd() / 'mlflow.db'}"
