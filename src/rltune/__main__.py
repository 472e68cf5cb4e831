"""Run ``python -m rltune <command>``, which equals ``rltune <command>`` and needs no script on the PATH."""

from rltune.search_path import place_working_folder

if __name__ == "__main__":
    place_working_folder(is_searched=False)  # Python has put it first, where its files would hide libraries.
    from rltune.cli.application.program import main

    main()
