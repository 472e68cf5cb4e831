"""A client of the REST API for scripts and commands, on any machine."""

from __future__ import annotations

import io
import logging
import math
import os
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import requests

from rltune.compose.overrides import spell_settings
from rltune.errors import ABSENT, ConfigError, RltuneError, StudyError, UnavailableError, UnexpectedError
from rltune.formatting import spell_command
from rltune.ledger.sweep_folder import require_path
from rltune.secrets import HIDDEN
from rltune.service.folder import ADDRESS, TOKEN, ServiceFolder

LIMIT_S = 60.0  # The time-out of a request; checking a submission takes seconds on a busy machine.
CONNECT_S = 10.0  # The time-out of a connection; behind a firewall an address may swallow what is sent to it.
# Each response of a service has this header. One without it comes from a proxy, its login page, or another server.
MARK = "X-Rltune"
TOKEN_FIX = "the token that the service printed when it started", f"export {TOKEN}=..."
INTERVAL_S = 1.0  # The polling interval of methods that wait for a sweep.
# How long a service is waited for that restarts, perhaps with its machine, or that has too many submissions to check.
PATIENCE_S = 300.0
LONGEST_PAUSE_S = 10.0  # Between two requests to a service that does not answer.
RETRY = "Retry-After"  # The header of a refusal after which nothing was changed, with the seconds until a second try.
WAITING = ("queued", "running")
# The error classes by HTTP status; any other status raises a ConfigError.
REFUSALS: Mapping[int, type[RltuneError]] = {
    404: StudyError,
    409: StudyError,
    500: UnexpectedError,
    503: UnavailableError,
}

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class ServiceError(UnavailableError):
    """The service cannot be reached."""


class TokenError(ConfigError):
    """The service has refused the token."""


def read_patiently(read: Callable[..., Answer], *arguments: Any, limit_s: float | None = None) -> Answer:
    """Call a function that reads from a service, and again with a back-off while the service is unavailable.

    While a service restarts, nobody answers, or a proxy does in its place. While the database of its queue restarts,
    the service answers that it is unavailable.

    Args:
        read: The function.
        arguments: Its arguments.
        limit_s: How long the service is waited for; None is `PATIENCE_S`.

    Raises:
        UnavailableError: It has not become available in time.
    """
    limit_s = PATIENCE_S if limit_s is None else limit_s
    began_s, pause_s = time.monotonic(), INTERVAL_S
    while True:
        try:
            return read(*arguments)
        except UnavailableError as error:
            left_s = began_s + limit_s - time.monotonic()
            if left_s <= 0:
                raise
            if pause_s == INTERVAL_S:
                logger.warning("%s; waiting for it for up to %.0f s", error.what, left_s)
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


class Client:
    """Submit sweeps to a service, and describe, stop and resume them.

    Args:
        address: The address of the service, such as ``http://127.0.0.1:8288``. None is the environment variable
            RLTUNE_SERVICE; without it, the service that runs over ``output_dir``.
        token: The token that ``rltune serve`` has printed. None is RLTUNE_SERVICE_TOKEN; without it, the one in
            ``output_dir``, which is sent to the service that runs over ``output_dir`` alone.
        output_dir: The service's folder of sweeps, if it is on this machine.

    Raises:
        ServiceError: The address of a service is not known.
        TokenError: The token cannot be one.
    """

    def __init__(self, address: str | None = None, token: str | None = None, output_dir: str = "outputs") -> None:
        if not isinstance(address, str | None):
            allowed = "http://host:port, or None for the service that runs over output_dir"
            raise ConfigError("address", address, "is no address", allowed, "http://127.0.0.1:8288")
        if not isinstance(token, str | None):
            kind = f"a {type(token).__name__}"
            raise ConfigError("token", kind, "is no token", "a text, or None", f"the environment variable {TOKEN}")
        require_path("output_dir", output_dir, "the path of the folder of all sweeps")
        folder = ServiceFolder(output_dir)
        local_address, named_address = folder.read_address(), address or os.environ.get(ADDRESS)
        # A service that was found by its folder may have another address after a restart.
        self._folder = None if named_address else folder
        self.address = (named_address or _require_address(folder)).rstrip("/")
        self._has_answered = False
        self._session = requests.Session()
        # requests must not take a login from .netrc instead of the token, nor use a proxy, which cannot reach
        # localhost.
        self._session.trust_env = False
        # The token in the service's folder is only sent to the address in that folder, and not to another one that a
        # user typed.
        chosen_token = (
            token or os.environ.get(TOKEN) or (folder.read_token() if self.address == local_address else None)
        )
        if chosen_token := (chosen_token or "").strip():  # A file or a secret that has it may end with a line break.
            if not (chosen_token.isascii() and chosen_token.isprintable()):
                raise TokenError(TOKEN, HIDDEN, "has characters that no token has", *TOKEN_FIX)
            self._session.headers["Authorization"] = f"Bearer {chosen_token}"

    def check(self) -> None:
        """Verify that the service responds and accepts the token.

        Raises:
            ServiceError: It does not respond.
            TokenError: It does not accept the token.
        """
        self._send("GET", "health")

    def submit(
        self, *overrides: str, name: str | None = None, group: str | None = None, **settings: Any
    ) -> dict[str, Any]:
        """Submit a sweep, which appends it to the service's queue.

        Args:
            overrides: As they are typed: ``"algo=ppo"``.
            name: The sweep's name; None has one made.
            group: A name that is shared by sweeps which belong together.
            settings: As keywords, nested ones as mappings: ``budget={"trials": 8}``.

        While the service has too many submissions to check, it is asked again for `PATIENCE_S`.

        Returns:
            The description of the sweep, as `show` returns it.

        Raises:
            RltuneError: It cannot be run; three parts say why.
        """
        all_overrides = [*overrides, *spell_settings(settings)]
        return dict(self._send("POST", "sweeps", {"overrides": all_overrides, "name": name, "group": group}).json())

    def check_sweep(self, *overrides: str, name: str | None = None) -> dict[str, Any]:
        """Check a sweep as `submit` does, without submitting it; return what it costs at most, and its overrides.

        Raises:
            RltuneError: It cannot be run; three parts say why.
        """
        return dict(self._send("POST", "checks", {"overrides": [*overrides], "name": name}).json())

    def list(
        self, group: str | None = None, limit: int | None = None, offset: int = 0, state: str | Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """List submitted sweeps: running ones first, then queued ones in order, then ended ones.

        Args:
            group: Return the sweeps of this group; None means all.
            limit: Return at most so many; None means all.
            offset: Leave out so many at the beginning.
            state: Return the sweeps in this state, or in one of these; none means all.
        """
        params = {"group": group, "limit": limit, "offset": offset, "state": state}
        return [*self._send("GET", "sweeps", params=params).json()]

    def compare(self, *names: str) -> dict[str, Any]:
        """Compare the winners of sweeps with that of the first, as ``rltune compare`` does."""
        return dict(self._send("GET", "comparison", params={"sweeps": names}).json())

    def show(self, name: str) -> dict[str, Any]:
        """Return a sweep's state, its position in the queue, its progress and its best score."""
        return dict(self._send("GET", f"sweeps/{name}").json())

    def result(self, name: str) -> dict[str, Any]:
        """Return what ``rltune show json=true`` has of a sweep that has begun: how it ended, its winner and trials."""
        return dict(self._send("GET", f"sweeps/{name}/result").json())

    def table(self, name: str) -> str:
        """Return what ``rltune show`` prints of a sweep that has begun."""
        return self._send("GET", f"sweeps/{name}/table").text

    def policy(self, name: str, folder: str | Path, trial: int | None = None) -> Path:
        """Unpack a policy of a sweep into a folder for `rltune.load_policy`.

        Args:
            name: The sweep.
            folder: Where to unpack it.
            trial: The number of the trial; None is the winner, or the best trial so far.

        Returns:
            The folder.
        """
        content = self._send("GET", f"sweeps/{name}/policy", params={"trial": trial}).content
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            packed.extractall(folder)
        return Path(folder)

    def events(self, name: str) -> Sequence[dict[str, Any]]:
        """Return the changes of a sweep's state with their reasons, the oldest first."""
        return [*self._send("GET", f"sweeps/{name}/events").json()]

    def report(self, name: str) -> str:
        """Return the report of a sweep that has begun, as of now: one HTML page that needs no network."""
        return self._send("GET", f"sweeps/{name}/report").text

    def stop(self, name: str) -> dict[str, Any]:
        """Stop a running sweep so that it can be resumed, or remove a waiting one from the queue."""
        return self._act("stop", name, {})

    def resume(self, name: str, *overrides: str) -> dict[str, Any]:
        """Resume an ended sweep, which appends it to the service's queue.

        Args:
            name: The sweep.
            overrides: The settings that change from now on: ``"budget.trials=40"``.
        """
        return self._act("resume", name, {"overrides": [*overrides]})

    def retry(self, name: str, trials: Sequence[int] | None = None, *overrides: str) -> dict[str, Any]:
        """Retry failed trials with their numbers and parameters.

        Args:
            name: The sweep.
            trials: The trials' numbers; None means all failed trials.
            overrides: The settings that change from now on, once the sweep has ended: ``"env.restarts=20"``.
        """
        if not isinstance(trials, Sequence | None) or isinstance(trials, str):
            raise ConfigError("trials", trials, "is no list", "numbers of failed trials, or None", "trials=[3]")
        chosen = None if trials is None else [*trials]
        return self._act("retry", name, {"trials": chosen, **({"overrides": [*overrides]} if overrides else {})})

    def enqueue(self, name: str, **space: Any) -> dict[str, Any]:
        """Enqueue a configuration, such as ``lr=1e-3``, as the next trial; the searcher draws the other values."""
        return self._act("enqueue", name, {"space": space})

    def logs(self, name: str, follow: bool = False) -> Iterator[str]:
        """Yield the output of a sweep's commands in chunks.

        Args:
            name: The sweep.
            follow: Whether to wait for more until the sweep has ended, and for a service that restarts.
        """
        start, limit_s = 0, None if follow else 0.0
        while True:
            is_last = not follow or self.read_patiently(self.show, name)["state"] not in WAITING
            parameters = {"start": start}
            response = self.read_patiently(self._send, "GET", f"sweeps/{name}/logs", None, parameters, limit_s=limit_s)
            start = int(response.headers["X-Next"])
            if response.text:
                yield response.text
            elif is_last:
                return
            else:
                time.sleep(INTERVAL_S)

    def wait(self, *names: str, timeout_s: float | None = None) -> Sequence[dict[str, Any]]:
        """Wait until the given sweeps have ended, and for a service that restarts meanwhile.

        Args:
            names: The sweeps.
            timeout_s: The longest wait; None means no limit.

        Returns:
            The description of each sweep, as `show` returns it.

        Raises:
            TimeoutError: A sweep has not ended by then.
            ServiceError: The service has not answered for `PATIENCE_S`, or in the rest of the wait.
        """
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s

        def read(method: Callable[..., Answer], *arguments: Any) -> Answer:
            left_s = max(0.0, deadline_s - time.monotonic())
            return self.read_patiently(method, *arguments, limit_s=min(PATIENCE_S, left_s))

        sweeps = [read(self.show, name) for name in names]
        while unfinished := [sweep["name"] for sweep in sweeps if sweep["state"] in WAITING]:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{', '.join(unfinished)}: not ended")
            time.sleep(INTERVAL_S)
            # The list of those that wait or run is read quickly, however many others have ended.
            waiting = {sweep["name"]: sweep for sweep in read(self.list, None, None, 0, WAITING)}
            sweeps = [waiting.get(name) or read(self.show, name) for name in names]
        return sweeps

    def read_patiently(self, read: Callable[..., Answer], *arguments: Any, limit_s: float | None = None) -> Answer:
        """Call a method that only reads, and again with a back-off while a service that has answered before restarts.

        The first request of a client does not wait, so that a wrong address is reported at once.

        Args:
            read: The method.
            arguments: Its arguments.
            limit_s: How long the service is waited for; None is `PATIENCE_S`.

        Raises:
            UnavailableError: It has not become available in time.
        """
        return read_patiently(read, *arguments, limit_s=limit_s if self._has_answered else 0.0)

    def _act(self, verb: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self._send("POST", f"sweeps/{name}/{verb}", dict(arguments)).json())

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, params: Mapping[str, Any] | None = None
    ) -> requests.Response:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            response = self._send_once(method, path, body, params)
            if response.ok:
                return response
            if response.status_code != 503 or RETRY not in response.headers or time.monotonic() > deadline_s:
                raise REFUSALS.get(response.status_code, ConfigError).from_dict(response.json())
            time.sleep(float(response.headers[RETRY]))

    def _send_once(
        self, method: str, path: str, body: Mapping[str, Any] | None, params: Mapping[str, Any] | None
    ) -> requests.Response:
        if self._folder:
            self.address = _require_address(self._folder)
        try:
            response = self._session.request(
                method,
                f"{self.address}/api/{path}",
                json=body,
                params=params,
                timeout=(CONNECT_S, LIMIT_S),
                allow_redirects=False,  # A service redirects no request; a login page would be taken for its answer.
            )
        except requests.RequestException as error:
            if isinstance(error, ValueError):  # It is malformed, and nothing was sent.
                raise ConfigError(
                    "service.address",
                    self.address,
                    "is no address",
                    "http://host:port, or https://host",
                    f"export {ADDRESS}=http://127.0.0.1:8288",
                ) from None
            raise ServiceError(
                f"no service answers at {self.address} ({type(error).__name__})",
                "a service that runs",
                f"{spell_command('serve')}, or service.address= of another service",
            ) from None
        if MARK not in response.headers:
            target = response.headers.get("Location")
            raise ServiceError(
                f"{self.address} answers with {response.status_code}{f' and leads to {target}' if target else ''}, and "
                "not as a service of rltune",
                "the address that the service printed, and a proxy that lets requests with its token in",
                f"export {ADDRESS}=http://host:port",
            )
        self._has_answered = True
        if response.status_code == 401:
            has_token = "Authorization" in self._session.headers
            raise TokenError(
                TOKEN,
                HIDDEN if has_token else ABSENT,
                f": {self.address} {'does not accept this token' if has_token else 'needs a token, and it is not set'}",
                *TOKEN_FIX,
            )
        return response


def _require_address(folder: ServiceFolder) -> str:
    """Return the address of the service that runs over a folder.

    Raises:
        ServiceError: None runs there, or on another host.
    """
    if address := folder.read_address():
        return address
    raise ServiceError(
        f"no service runs for {folder.sweeps}",
        f"a service that runs there, or service.address=http://host:port, or {ADDRESS}",
        spell_command("serve"),
    )
