"""Talk to a service from a script or a command, on this machine or another one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import requests

from rltune.composition.overrides import spell_settings
from rltune.config.uris import HIDDEN
from rltune.errors import ConfigError, StudyError, UnavailableError
from rltune.formatting import spell_command
from rltune.service.folder import ADDRESS, TOKEN, ServiceFolder

LIMIT_S = 60.0  # for an answer: checking a sweep takes seconds on a busy machine
EVERY_S = 1.0
WAITING = ("queued", "running")


class ServiceError(UnavailableError):
    """A service that cannot be reached."""


class TokenError(ConfigError):
    """A token that the service does not accept."""


class Client:
    """A service: submit sweeps, look at them, stop them and go on with them.

    Args:
        address: Where it is reached, such as ``http://127.0.0.1:8288``. None is the environment variable
            RLTUNE_SERVICE; without it, the service that runs over ``output_dir``.
        token: What ``rltune serve`` has printed. None is RLTUNE_SERVICE_TOKEN; without it, the one in ``output_dir``,
            which is sent to the service that runs over ``output_dir`` alone.
        output_dir: The service's folder of sweeps, where it is on this machine.

    Raises:
        ServiceError: It is not known where a service is.
    """

    def __init__(self, address: str | None = None, token: str | None = None, output_dir: str = "outputs") -> None:
        folder = ServiceFolder(output_dir)
        local = folder.read_address()
        chosen = address or os.environ.get(ADDRESS) or local
        if chosen is None:
            raise ServiceError(
                f"no service runs over {folder.sweeps}",
                f"a service that runs there, or service.address=http://host:port, or {ADDRESS}",
                spell_command("serve"),
            )
        self.address = chosen.rstrip("/")
        self._session = requests.Session()
        self._session.trust_env = False  # a .netrc would take the token's place, a proxy knows no loopback
        # The folder's token goes to the folder's service alone, whatever address was typed.
        chosen_token = token or os.environ.get(TOKEN) or (folder.read_token() if self.address == local else None)
        if chosen_token:
            self._session.headers["Authorization"] = f"Bearer {chosen_token}"

    def check(self) -> None:
        """Ask whether it is there and knows the token.

        Raises:
            ServiceError: It is not there.
            TokenError: It does not accept the token.
        """
        self._ask("GET", "health")

    def submit(
        self, *overrides: str, name: str | None = None, group: str | None = None, **settings: Any
    ) -> dict[str, Any]:
        """Put a sweep into the queue.

        Args:
            overrides: As they are typed: ``"algo=ppo"``.
            name: The sweep's; None has one made.
            group: A name that sweeps share which belong together.
            settings: As keywords, nested ones as mappings: ``budget={"trials": 8}``.

        Returns:
            What `show` does.

        Raises:
            RltuneError: It cannot be run; three parts say why.
        """
        words = [*overrides, *spell_settings(settings)]
        return dict(self._ask("POST", "sweeps", {"overrides": words, "name": name, "group": group}).json())

    def list(self, group: str | None = None) -> list[dict[str, Any]]:
        """Return all sweeps that were submitted, those that run first, then those that wait in their order."""
        return [*self._ask("GET", "sweeps", params={} if group is None else {"group": group}).json()]

    def show(self, name: str) -> dict[str, Any]:
        """Return a sweep's state, its place in the queue, how far it is and its best score."""
        return dict(self._ask("GET", f"sweeps/{name}").json())

    def stop(self, name: str) -> dict[str, Any]:
        """End a sweep cleanly, so that it can be resumed, or take it from the queue."""
        return self._act("stop", name, {})

    def resume(self, name: str, *overrides: str) -> dict[str, Any]:
        """Put a sweep that has ended back, at the queue's end.

        Args:
            name: The sweep.
            overrides: What it has more from now on: ``"budget.trials=40"``.
        """
        return self._act("resume", name, {"overrides": [*overrides]})

    def retry(self, name: str, trials: Sequence[int] | None = None) -> dict[str, Any]:
        """Try failed trials again, with their numbers and values; None is all of them."""
        return self._act("retry", name, {"trials": None if trials is None else [*trials]})

    def enqueue(self, name: str, **space: Any) -> dict[str, Any]:
        """Have a sweep try a configuration next: ``lr=1e-3``; what is left out, its searcher draws."""
        return self._act("enqueue", name, {"space": space})

    def logs(self, name: str, follow: bool = False) -> Iterator[str]:
        """Yield what a sweep's commands have said, in parts.

        Args:
            name: The sweep.
            follow: Whether to wait for more until it has ended.
        """
        start = 0
        while True:
            is_over = not follow or self.show(name)["state"] not in WAITING
            answer = self._ask("GET", f"sweeps/{name}/logs", params={"start": start})
            start = int(answer.headers["X-Next"])
            if answer.text:
                yield answer.text
            elif is_over:
                return
            else:
                time.sleep(EVERY_S)

    def wait(self, *names: str, timeout_s: float | None = None) -> Sequence[dict[str, Any]]:
        """Wait until sweeps have ended.

        Args:
            names: Which.
            timeout_s: How long; None is for ever.

        Returns:
            What `show` does, of each.

        Raises:
            TimeoutError: One has not ended by then.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = {one["name"]: one for one in self.list()}
            shown = [found[name] if name in found else self.show(name) for name in names]
            if not any(one["state"] in WAITING for one in shown):
                return shown
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"{', '.join(one['name'] for one in shown if one['state'] in WAITING)}: not ended")
            time.sleep(EVERY_S)

    def _act(self, verb: str, name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self._ask("POST", f"sweeps/{name}/{verb}", dict(facts)).json())

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, params: Mapping[str, Any] | None = None
    ) -> requests.Response:
        try:
            answer = self._session.request(
                method, f"{self.address}/api/{path}", json=body, params=params, timeout=LIMIT_S
            )
        except requests.RequestException as error:
            raise ServiceError(
                f"no service answers at {self.address} ({type(error).__name__})",
                "a service that runs",
                f"{spell_command('serve')}, or service.address= of another one",
            ) from None
        if answer.ok:
            return answer
        if answer.status_code == 401:
            raise TokenError(
                f"{TOKEN}={HIDDEN}: {self.address} does not accept this token",
                "the token that the service printed when it started",
                f"export {TOKEN}=...",
            )
        try:
            parts = answer.json()
            raise StudyError(parts["error"], parts["allowed"], parts["try"])
        except (ValueError, KeyError, TypeError):
            raise ServiceError(
                f"{self.address} answers with {answer.status_code}", "a service of rltune", spell_command("serve")
            ) from None
