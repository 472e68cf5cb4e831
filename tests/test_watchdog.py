"""The watchdog: what it leaves behind is about this attempt and no earlier one."""

from __future__ import annotations

from rltune.watchdog import STACK_FILE, Watchdog


def test_where_an_earlier_attempt_hung_does_not_explain_a_later_death(tmp_path):
    (tmp_path / STACK_FILE).write_text("no progress for 2 s")
    Watchdog(tmp_path, 60.0).close()
    assert not (tmp_path / STACK_FILE).exists()
