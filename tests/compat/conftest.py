"""Everything without our changes to other libraries."""

from __future__ import annotations

import pytest

from rltune.compat import patching


@pytest.fixture
def off(monkeypatch):
    """Take the plain path everywhere, in silence."""
    monkeypatch.setenv(patching.SWITCH, "off")
    monkeypatch.setattr(patching, "_refused", set(patching.TESTED))  # told before
