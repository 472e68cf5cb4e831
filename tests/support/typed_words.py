"""Type a command line for a check in this process, and what an error advises in its place."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from rltune.cli.application.multirun import Job
from rltune.cli.run import check
from rltune.compose.composing import compose_settings
from rltune.compose.explaining import refuse_flags
from rltune.config.schema import RunConfig
from rltune.errors import RltuneError

OVERRIDE = re.compile(r"[+~]{0,2}[\w./@]+=.+|~[\w.]+")


def refuse(*words: str) -> RltuneError | None:
    """The error with which ``rltune run check=true`` refuses the words; None if it accepts them."""
    try:
        refuse_flags("run", words)
        check([Job(compose_settings("run", RunConfig, words), tuple(words), multirun=False)])
    except RltuneError as error:
        return error
    return None


def read_advice(fix: str) -> list[str]:
    """What a person types who follows the first advice of a ``try:`` line; empty if it only says what to read."""
    first = re.split(r", (?:or|if|from) |; ", fix)[0]
    try:
        words = shlex.split(first)
    except ValueError:
        words = first.split()
    if "--help" in words:
        return []
    return [word.rstrip(",") for word in words if OVERRIDE.fullmatch(word.rstrip(","))]


def replace_word(words: Sequence[str], wrong: str, advice: Sequence[str]) -> list[str]:
    """The command line after the advice was followed: other words stand in for the wrong one, or take a key out."""
    if all(word.startswith("~") for word in advice):
        return [*words, *advice]
    added = [word for word in advice if not word.startswith("~")]
    return [*(word for word in words if word != wrong), *added, *(word for word in advice if word.startswith("~"))]
