"""``python -m sweeps.resume`` is ``rltune resume``."""

from rltune.cli.run import resume

if __name__ == "__main__":
    resume()
