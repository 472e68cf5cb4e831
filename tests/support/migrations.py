"""Read the migrations of Optuna and of MLflow once: each reads all of its own whenever it opens a database."""

from __future__ import annotations

import threading
from typing import Any

from alembic.script import ScriptDirectory

_read, _lock = ScriptDirectory.from_config, threading.Lock()
_known: dict[str | None, Any] = {}


def _read_once(config: Any) -> Any:
    place = config.get_main_option("script_location")
    with _lock:
        if place not in _known:
            _known[place] = _read(config)
            _known[place].get_heads()  # reads them
        return _known[place]


ScriptDirectory.from_config = _read_once  # type: ignore[method-assign,assignment]
