"""``python -m sweeps.serve`` is ``rltune serve``."""

from rltune.cli.service import serve

if __name__ == "__main__":
    serve()
