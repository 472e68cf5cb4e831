"""Many submissions at once delay no other request, and what a client has given up is not accepted."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from rltune.errors import RltuneError, UnavailableError
from rltune.service import admission, client
from rltune.service.checking import BusyError, CheckedSweep, check_submission, run_in_child
from tests.service.serviced import TOKEN, Serviced, run_service


class SlowCheck:
    """A check that lasts until a test ends it, and counts how many run at a time."""

    def __init__(self) -> None:
        self.end, self.num_running, self.most = threading.Event(), 0, 0
        self._lock = threading.Lock()

    def __call__(
        self, check: Callable[..., CheckedSweep], *arguments: object, is_wanted: Callable[[], bool]
    ) -> CheckedSweep:
        """Wait, and check."""
        with self._lock:
            self.num_running += 1
            self.most = max(self.most, self.num_running)
        assert self.end.wait(60)
        with self._lock:
            self.num_running -= 1
        name = str(arguments[2])
        return CheckedSweep(name, (), f"name: {name}")


def submit(service: Serviced, name: str, timeout_s: float = 60) -> int:
    """Submit a sweep; the status of the answer."""
    body = {"overrides": [], "name": name, "group": None}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return requests.post(f"{service.address}/api/sweeps", json=body, headers=headers, timeout=timeout_s).status_code


def test_many_submissions_at_once_delay_no_other_request(tmp_path: Path) -> None:
    check, statuses = SlowCheck(), list[int]()
    with run_service(tmp_path / "outputs", run_check=check) as service:
        threads = [
            threading.Thread(target=lambda name: statuses.append(submit(service, name)), args=(f"s{number}",))
            for number in range(60)
        ]
        for thread in threads:
            thread.start()
        while check.num_running < 2:
            time.sleep(0.01)
        began_s = time.monotonic()
        service.client.check()
        assert service.client.list() == []
        assert time.monotonic() - began_s < 5
        check.end.set()
        for thread in threads:
            thread.join(60)
        assert len(service.client.list()) == 60
    assert (statuses, check.most) == ([201] * 60, 2)


def test_health_is_answered_at_once_while_many_submit(tmp_path: Path) -> None:
    def check(act: object, *arguments: object, is_wanted: Callable[[], bool]) -> CheckedSweep:
        time.sleep(0.02)
        return CheckedSweep(str(arguments[2]), (), "")

    statuses, waits_s = list[int](), list[float]()
    with run_service(tmp_path / "outputs", run_check=check) as service:
        threads = [
            threading.Thread(target=lambda name: statuses.append(submit(service, name)), args=(f"s{number}",))
            for number in range(48)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            began_s = time.monotonic()
            assert service.ask("GET", "/health").status_code == 200
            waits_s.append(time.monotonic() - began_s)
    assert statuses == [201] * 48
    assert statistics.median(waits_s) < 0.1


def test_a_submission_that_its_client_gives_up_is_not_accepted(tmp_path: Path) -> None:
    check = SlowCheck()
    with run_service(tmp_path / "outputs", run_check=check) as service:
        with pytest.raises(requests.Timeout):
            submit(service, "one", 0.5)
        check.end.set()
        assert submit(service, "two") == 201
        assert [sweep["name"] for sweep in service.client.list()] == ["two"]


def test_a_submission_whose_turn_does_not_come_is_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "WAIT_S", 0.3)
    monkeypatch.setattr(BusyError, "headers", {"Retry-After": "0.05"})
    check = SlowCheck()
    with run_service(tmp_path / "outputs", run_check=check) as service:
        threads = [threading.Thread(target=submit, args=(service, f"s{number}")) for number in range(2)]
        for thread in threads:
            thread.start()
        while check.num_running < 2:
            time.sleep(0.01)
        assert submit(service, "three") == 503
        with monkeypatch.context() as patch:
            patch.setattr(client, "PATIENCE_S", 0.1)
            with pytest.raises(UnavailableError):
                service.client.submit(name="three")
        patient = threading.Thread(target=service.client.submit, kwargs={"name": "three"})
        patient.start()
        time.sleep(0.7)  # It has been refused once or twice.
        check.end.set()
        for thread in (*threads, patient):
            thread.join(60)
        assert {sweep["name"] for sweep in service.client.list()} == {"s0", "s1", "three"}


def test_a_check_that_waited_too_long_is_not_called_slow(tmp_path: Path) -> None:
    with pytest.raises(BusyError) as refused:
        run_in_child(check_submission, [], str(tmp_path), is_wanted=lambda: False)
    assert refused.value.exit_code == 75
    with pytest.raises(RltuneError) as refused:
        run_in_child(check_submission, [], str(tmp_path), limit_s=0.0)
    assert refused.value.exit_code == 2


def test_health_takes_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_service(tmp_path / "outputs") as service:

        def hang() -> list[object]:
            hanging.release()
            assert end.wait(60)
            return []

        end, hanging = threading.Event(), threading.Semaphore(0)
        monkeypatch.setattr(service.sweeps.submissions, "list", hang)
        threads = [threading.Thread(target=service.client.list) for _ in range(40)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert hanging.acquire(timeout=30)
        service.client.check()
        end.set()
        for thread in threads:
            thread.join(30)
