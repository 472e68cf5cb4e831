"""Find a sweep by its name, lock it, and say how to resume it. Runs anywhere."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from rltune.errors import StudyError, choices


def find_sweep(sweep: str, output_dir: str = "outputs", key: str = "sweep") -> Path:
    """Find a sweep's folder by its name, or the newest one's for ``latest``.

    Args:
        sweep: The name.
        output_dir: The folder of all sweeps.
        key: The setting that named it, for the error.

    Raises:
        StudyError: There is none; the nearest name is given.
    """
    root = Path(output_dir).expanduser().absolute()
    found = {path.parent.name: path.stat().st_mtime for path in root.glob("*/config.yaml")}
    if sweep == "latest" and found:
        return root / max(found, key=lambda name: found[name])
    if sweep not in found:
        raise StudyError(f"{key}={sweep}: no such sweep in {root}", choices(sweep, found), "python -m sweeps.list")
    return root / sweep


def list_sweep_folders(output_dir: str) -> list[Path]:
    """List the folders of all sweeps, the newest last."""
    root = Path(output_dir).expanduser().absolute()
    return [path.parent for path in sorted(root.glob("*/config.yaml"), key=lambda path: path.stat().st_mtime)]


@contextlib.contextmanager
def lock_sweep(folder: Path) -> Iterator[bool]:
    """Keep other drivers from a sweep; yield False where one has it."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def make_resume_command(folder: Path) -> str:
    """Make what to type to go on with a sweep, from the present folder."""
    root = folder.parent
    return f"python -m sweeps.resume sweep={folder.name}" + (
        "" if root == Path("outputs").absolute() else f" output_dir={root}"
    )
