"""Identify a sweep and where it is stored, by a single value that all functions take. Runs anywhere."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rltune.checkpoints.clients import make_address
from rltune.checkpoints.store import open_store
from rltune.config.settings_file import read_settings
from rltune.errors import RltuneError, StudyError, choices, nearest
from rltune.formatting import flatten_settings, spell_command
from rltune.ledger.handover import fetch_sweep
from rltune.ledger.sweep_folder import (
    SETTINGS,
    is_half_made,
    require_path,
    spell_output_dir,
)
from rltune.secrets import conceal, lacks_login

if TYPE_CHECKING:
    from rltune.ledger.ledger import Ledger

LATEST = "latest"
NAMED = "a sweep's name, latest, or the path of its folder"


@dataclass(frozen=True)
class SweepRef:
    """The name of a sweep, and where its folder, its files in remote storage and its ledger are.

    Neither ``repr`` nor pickle keeps a password: ``***`` stands in its place. A reference that was sent to another
    process therefore finds every sweep that needs none; for any other sweep it is refused, and needs the whole address.

    Attributes:
        name: The sweep's name, or ``latest`` for the newest one.
        output_dir: The folder of all sweeps.
        storage: The setting ``storage`` with which the sweep was run, such as ``s3://bucket/prefix``. A sweep that is
            not in ``output_dir`` is fetched from there: everything but its checkpoints, which are fetched when they are
            used.
        ledger_url: The address of the sweep's ledger with its login, where its settings name a database. None is the
            address in the settings, which has no login.
    """

    name: str = LATEST
    output_dir: str | os.PathLike[str] = "outputs"
    storage: str | None = None
    ledger_url: str | None = None

    def __post_init__(self) -> None:
        """Conceal the logins of the addresses.

        Raises:
            StudyError: A part of the reference is of another type.
        """
        require_path("sweep", self.name, NAMED)
        require_path("output_dir", self.output_dir, "the path of the folder of all sweeps")
        for key in ("storage", "ledger_url"):
            if (address := getattr(self, key)) is not None:
                if not isinstance(address, str):
                    kind = f"a {type(address).__name__}"
                    raise StudyError("is no address", "an address as text, or None", f"{key}=None", key=key, value=kind)
                object.__setattr__(self, key, conceal(address))

    @classmethod
    def of(
        cls,
        sweep: str | os.PathLike[str],
        output_dir: str | os.PathLike[str] = "outputs",
        storage: str | None = None,
        ledger_url: str | None = None,
    ) -> SweepRef:
        """Make a reference from a sweep's name, from ``latest``, or from the path of its folder.

        Args:
            sweep: The name or the folder, or an open sweep, which stands for its folder.
            output_dir: The folder of all sweeps, where a name is given.
            storage: As for the class.
            ledger_url: As for the class.

        Raises:
            StudyError: It is neither a text nor a path.
        """
        require_path("sweep", sweep, NAMED)
        if (Path(sweep) / SETTINGS).is_file():
            folder = Path(sweep).absolute()
            return cls(folder.name, folder.parent, storage, ledger_url)
        return cls(str(sweep), output_dir, storage, ledger_url)

    def folder(self, key: str = "sweep") -> Path:
        """Find the sweep's folder; if the sweep is only in remote storage, download its files.

        Args:
            key: The setting that named the sweep, for the error.

        Raises:
            StudyError: There is no such sweep; the nearest name is given. Or the storage cannot be used.
        """
        times = self._list_stored() | {folder.name: _read_time(folder) for folder in self._list_local()}
        name = max(times, key=lambda name: times[name]) if self.name == LATEST and times else self.name
        folder = self.root / name
        if name in times:
            self._refresh(folder)
            return folder
        if is_half_made(folder):
            raise StudyError(
                f": no sweep was started in {folder}",
                "a sweep whose folder holds its settings",
                spell_command(f"run name={name}{spell_output_dir(self.root)} algo=... env=..."),
                key=key,
                value=name,
            )
        known = [*times, *([LATEST] if times else [])]
        close = nearest(name, known)
        fix = f"{key}={close}" if close and key == "sweep" else spell_command("list")
        raise StudyError(f": no such sweep in {self.root}", choices(name, known, close), fix, key=key, value=name)

    def list_folders(self) -> list[Path]:
        """List the folders of all sweeps in ``output_dir``, the newest last; the reference's own name plays no part.

        Raises:
            StudyError: The storage cannot be used.
        """
        for name in self._list_stored():
            self._refresh(self.root / name)
        return sorted(self._list_local(), key=_read_time)

    def is_stored(self) -> bool:
        """Return whether the remote storage has the sweep.

        Raises:
            StudyError: The storage cannot be used.
        """
        return self.name in self._list_stored()

    def open_ledger(self) -> Ledger:
        """Open the sweep's ledger, for reading.

        Raises:
            StudyError: There is no such sweep, its ledger cannot be read, or the ledger's address needs a login.
        """
        folder = self.folder()
        # The import of SQLAlchemy is slow, so a misspelt sweep name is reported before it.
        from rltune.ledger.storage import open_ledger

        return open_ledger(folder, self.ledger_url)

    @property
    def root(self) -> Path:
        """The absolute path of the folder of all sweeps."""
        return Path(self.output_dir).expanduser().absolute()

    def _refresh(self, folder: Path) -> None:
        if self.storage is not None:
            fetch_sweep(open_store(folder, make_address(self.storage, folder.name)))

    def _list_local(self) -> Iterable[Path]:
        return (path.parent for path in self.root.glob(f"*/{SETTINGS}"))

    def _list_stored(self) -> dict[str, float]:
        """List the sweeps in remote storage by name, with the times at which their settings were saved."""
        if self.storage is None:
            return {}
        if lacks_login(self.storage):
            raise StudyError(
                ": the login is not saved in any file",
                "the whole address",
                "storage=...",
                key="storage",
                value=self.storage,
            )
        store = open_store(self.root, make_address(self.storage))
        store.check()
        return store.list_folders(holding=SETTINGS)


@contextlib.contextmanager
def name_start(ref: SweepRef) -> Iterator[None]:
    """Let an error of a sweep's environment name the folder of the sweep's start, if this one lacks what that one has.

    It is the folder above the sweep's that has a module of the environment, of a wrapper or of the objective, or a file
    among the environment's arguments.
    """
    try:
        yield
    except RltuneError as error:
        if not error.key or error.key.startswith(("env.id", "env.kwargs", "env.wrappers", "objective.kind")):
            with contextlib.suppress(RltuneError, OSError, ValueError):
                folder = ref.folder()
                settings = read_settings(folder)
                env = settings["env"]
                scored = str((settings.get("objective") or {}).get("kind"))
                points = [scored, *(each["entry_point"] for each in env.get("wrappers") or [])]
                modules = [env["id"].rpartition(":")[0] or env["id"], *(point.rpartition(":")[0] for point in points)]
                packages = [package for module in modules if (package := module.partition(".")[0]).isidentifier()]
                lacking = [package for package in packages if importlib.util.find_spec(package) is None]
                needed = [name for package in lacking for name in (f"{package}.py", package)]
                # A word may be the name of some folder above by chance, such as home; a path or a file's name is none.
                needed += [
                    value
                    for name, value in flatten_settings(env.get("kwargs") or {})
                    if isinstance(value, str)
                    and (error.key == f"env.kwargs.{name}" or Path(value).suffix or len(Path(value).parts) > 1)
                    and not Path(value).exists()
                ]
                starts = ((above, name) for above in folder.parents for name in needed if (above / name).exists())
                for start, name in starts:
                    where = (
                        "" if Path(ref.output_dir).is_absolute() else f", with output_dir={shlex.quote(str(ref.root))}"
                    )
                    error.suggest(f"cd {shlex.quote(str(start))}, which has {name}, and the same command there{where}")
                    break
        raise


def _read_time(folder: Path) -> float:
    return (folder / SETTINGS).stat().st_mtime
