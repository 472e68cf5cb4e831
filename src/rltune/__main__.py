"""Run ``python -m rltune <command>``, which equals ``rltune <command>`` and needs no script on the PATH."""

from rltune.cli.application.program import main

if __name__ == "__main__":
    main()
