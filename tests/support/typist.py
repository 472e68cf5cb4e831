"""Type commands, each in a process forked from one that has imported Hydra and ours, which takes longer than an answer.

A line of standard input is a folder and the words after ``python -m``, as JSON. Beside the folder are left ``.out``,
``.err``, ``.code`` and, in ``.loaded``, the modules that the command has imported.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import sys
from pathlib import Path

import hydra.main  # noqa: F401

import rltune.driver.run  # noqa: F401


def list_imported() -> list[str]:
    """List the modules that are imported, but none that a thread is only beginning to import."""
    specs = {name: getattr(module, "__spec__", None) for name, module in list(sys.modules.items())}
    return [name for name, spec in specs.items() if not getattr(spec, "_initializing", False)]


def become(folder: Path, words: list[str]) -> None:
    """Be ``python -m <words>``, typed in a folder."""
    folder.mkdir()
    os.chdir(folder)
    for number, end in ((1, ".out"), (2, ".err")):
        with folder.with_suffix(end).open("w") as written:
            os.dup2(written.fileno(), number)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    atexit.register(lambda: folder.with_suffix(".loaded").write_text("\n".join(list_imported())))
    sys.path[0] = str(folder)
    sys.argv, sys.orig_argv = words, [sys.executable, "-m", *words]
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def main() -> None:
    """Type one after the other; in each forked process, the command."""
    for line in sys.stdin:
        folder, *words = json.loads(line)
        if not (child := os.fork()):
            return become(Path(folder), words)
        _, status = os.waitpid(child, 0)
        Path(folder).with_suffix(".code").write_text(str(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main()
