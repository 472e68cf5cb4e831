"""MLflow's own store in a file of this machine: made whole or not at all.

MLflow makes its tables by dozens of migrations, seconds long; a driver that is killed meanwhile would leave a file that
no MLflow opens again ("table ... already exists", 3.17). Runs in the driver, in the tracker's thread.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

PREFIX = "sqlite:///"


def make(uri: str) -> None:
    """Make the file that an address names, unless it is there or the address is another kind's.

    Raises:
        OSError: Its folder cannot be written.
    """
    path = Path(uri.removeprefix(PREFIX).partition("?")[0])
    if not uri.startswith(PREFIX) or path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    from mlflow import MlflowClient

    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        draft = Path(folder) / path.name
        client = MlflowClient(f"{PREFIX}{draft}")
        client.search_experiments(max_results=1)
        client._tracking_client.store.engine.dispose()
        try:
            os.link(draft, path)
        except FileExistsError:
            pass  # another sweep was first
        except OSError:  # a file system without links
            draft.rename(path)
