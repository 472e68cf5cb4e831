"""``python -m rltune <command>``: the program ``rltune``, where its folder is not on the path."""

from rltune.cli.application.program import main

if __name__ == "__main__":
    main()
