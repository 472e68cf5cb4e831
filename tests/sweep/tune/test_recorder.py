"""What is recorded of trials besides the ledger."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rltune.sweep.stopper import SweepStopper


def test_what_tune_keeps_of_the_control_holds_no_login(tmp_path: Path, request_of: Callable[..., Any]) -> None:
    config = request_of("tracking=server", "tracking.uri=http://me:s3cret@127.0.0.1:9")
    assert "s3cret" in config.tracking.uri
    assert b"s3cret" not in pickle.dumps(SweepStopper(tmp_path, config))
