"""Switch off our changes to other libraries."""

from __future__ import annotations

import pytest

from rltune.compat import patching


@pytest.fixture
def off(monkeypatch):
    """Switch all replacements off."""
    monkeypatch.setenv(patching.SWITCH, "off")
