"""A sweep opens the trackers that its settings name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rltune.tracking.dashboard import DashboardTracker
from rltune.tracking.mlflow_tracker import MLflowTracker
from rltune.tracking.tensorboard import TensorBoardTracker


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        ((), [DashboardTracker]),
        (("tracking.tensorboard=true",), [TensorBoardTracker, DashboardTracker]),
        (("tracking=local",), [MLflowTracker, DashboardTracker]),
    ],
)
def test_each_tracker_of_the_settings_is_opened(
    open_mine: Callable[..., Any], words: tuple[str, ...], kinds: list[type]
) -> None:
    with open_mine("certify=off", *words) as sweep:
        assert [type(feed.tracker) for feed in sweep.tracker._feeds] == kinds
