"""The commands in the recipes of deploy/, as they are typed there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from composing import compose

from rltune.config.schema import RunConfig
from rltune.config.validation import parse_config

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def compose_command(text: str, values: Mapping[str, str]) -> tuple[list[str], RunConfig]:
    """The overrides of the one `rltune run` in a shell's script, and what they come to.

    Args:
        text: The script.
        values: Of the variables in it, `$@` among them.
    """
    (line,) = re.findall(r"rltune run (name=(?:.*\\\n)*.*)", text)
    line = line.replace("\\\n", " ").rstrip("& ")
    filled = re.sub(r"\"?\$(?:(\w+)|(@))\"?", lambda match: values[match[1] or match[2]], line)
    words = shlex.split(filled)
    return words, parse_config(compose("run", *words))
