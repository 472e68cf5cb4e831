"""Errors for users, in three parts: what was wrong, what is allowed, what to type next.

The driver and the workers raise them. The commands print them without a traceback and exit with the error's
`exit_code`: 2 for a request that is wrong whenever it is typed, 75 for one that may succeed when it is typed again.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from rltune.secrets import redact

EXIT_FAULT = 1  # Exit code for faults, and for a sweep without a winner.
EXIT_REQUEST = 2  # Exit code for a wrong request, which would fail again.
EXIT_TRY_AGAIN = 75  # Exit code EX_TEMPFAIL of sysexits.h: the same command may succeed later.

# Matches a setting and its value at the beginning of an error; a list, a mapping or a quoted text may contain blanks.
_SUBJECT = re.compile(r"""([\w.+@/-]+)=(\[.*?\]|\{.*?\}|'.*?'|".*?"|\S*?)(?=[:;,]?(?:\s|$))""")


class RltuneError(Exception):
    """Base class of errors for users, with three parts.

    Args:
        what: The key and the value that are wrong, or what failed.
        allowed: What would be right, with the nearest name where there is one.
        fix: What to type next.
    """

    exit_code: ClassVar[int] = EXIT_REQUEST

    def __init__(self, what: str, allowed: str = "", fix: str = "") -> None:
        self.what, self.allowed, self.fix = map(redact, (what, allowed, fix))
        super().__init__("\n".join([self.what, *self._label_parts()]))

    def __reduce__(self) -> tuple[type[RltuneError], tuple[str, str, str]]:
        """Pickle the three parts, so that the error survives the way to another process."""
        return type(self), (self.what, self.allowed, self.fix)

    @property
    def key(self) -> str:
        """The setting or argument that is wrong, such as ``training.lr``; empty if the error concerns none."""
        match = _SUBJECT.match(self.what)
        return match[1] if match else ""

    @property
    def value(self) -> str | int | float | bool | None:
        """The wrong value of the setting, with numbers as numbers; None if the error concerns no setting."""
        match = _SUBJECT.match(self.what)
        if match is None:
            return None
        for convert in (int, float):
            with contextlib.suppress(ValueError):
                # Infinite values stay text, because JSON has neither infinity nor NaN.
                if math.isfinite(number := convert(match[2])):
                    return number
        words: dict[str, bool | None] = {"true": True, "false": False, "null": None}
        return words.get(match[2].lower(), re.sub(r"^(['\"])(.*)\1$", r"\2", match[2]))

    def pretty(self) -> str:
        """Return the three parts, one per line, as commands print them."""
        return f"error: {self}"

    def to_dict(self) -> dict[str, Any]:
        """Return the parts as a dictionary, as ``json=true`` and the REST interface return them."""
        return {
            "error": self.what,
            "key": self.key or None,
            "value": self.value,
            "allowed": self.allowed,
            "try": self.fix,
            "exit_code": self.exit_code,
        }

    def _label_parts(self) -> list[str]:
        return [f"{label}{part}" for label, part in (("  allowed: ", self.allowed), ("  try:     ", self.fix)) if part]


class UnexpectedError(RltuneError):
    """An unexpected exception, which is a fault of rltune or of code that it calls."""

    exit_code: ClassVar[int] = EXIT_FAULT


class ConfigError(RltuneError):
    """A setting is unknown, out of range or in conflict with another one."""


class ResourceError(RltuneError):
    """The requested CPUs, GPUs or memory exceed what this machine or cluster has."""


class StudyError(RltuneError):
    """A sweep's folder or ledger is missing, damaged or in use."""


class UnavailableError(RltuneError):
    """A server, disk, database or cluster does not work at the moment; the same command may succeed later."""

    exit_code: ClassVar[int] = EXIT_TRY_AGAIN


class StudyUnavailableError(StudyError, UnavailableError):
    """A sweep's ledger, disk or bucket does not work at the moment, or another driver holds the sweep's lease."""


class PolicyError(RltuneError):
    """A policy cannot be found, loaded or used."""


# What other libraries call rltune's settings, the closest setting first. By spelling alone, `n_steps` of
# Stable-Baselines3 would be mistaken for `num_epochs`.
OTHER_NAMES: Mapping[str, Sequence[str]] = {
    "n_steps": ("train_batch_size_per_learner", "n_step", "rollout_fragment_length"),
    "n_envs": ("num_envs_per_env_runner",),
    "num_envs": ("num_envs_per_env_runner",),
    "n_epochs": ("num_epochs",),
    "batch_size": ("minibatch_size", "train_batch_size_per_learner"),
    "learning_rate": ("lr", "actor_lr"),
    "n_timesteps": ("env_steps", "budget.env_steps"),
    "total_timesteps": ("env_steps", "budget.env_steps"),
    "td3": ("tqc", "sac"),
    "ddpg": ("sac",),
    "trpo": ("ppo",),
    "qrdqn": ("rainbow", "dqn"),
    "recurrentppo": ("ppo",),
    "halving": ("asha",),
    "pbt": ("asha",),
}


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name closest to ``name``, by spelling or meaning: ``lr`` for ``learning_rate``; else None.

    Capitals make no difference, and `OTHER_NAMES` come before names that are merely spelled alike.

    Args:
        name: What was typed.
        known: What would have been right.
        cutoff: How alike they must be, from 0 to 1.
    """
    names = {text.casefold(): text for text in reversed(list(known))}
    typed = name.casefold()
    for meant in (typed, *OTHER_NAMES.get(re.sub(r"[-_]", "", typed), OTHER_NAMES.get(typed, ()))):
        if meant in names:
            return names[meant]
    close = difflib.get_close_matches(typed, names, n=1, cutoff=cutoff)
    initials = "".join(part[:1] for part in typed.split("_"))
    return names[close[0]] if close else names.get(initials) if len(initials) > 1 else None


def choices(name: str, known: Iterable[str], meant: str | None = None) -> str:
    """List all allowed names for an error about ``name``, and ask whether the nearest one was meant."""
    names = sorted(known)
    close = meant or nearest(name, names)
    if not names:
        return "there is none yet"
    listed = ", ".join(names)
    return f"one of: {listed}" + (f"; did you mean '{close}'?" if close else "")


def describe_exception(error: BaseException) -> str:
    """Return the type of another library's exception and the first line of its message, without logins."""
    lines = redact(str(error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


class NonFiniteError(RltuneError):
    """Raised if a loss, a weight or a return becomes NaN or infinite, from which a trial cannot recover.

    Args:
        what: Which number, and when.
    """

    def __init__(
        self,
        what: str,
        allowed: str = "losses, weights and returns that stay finite; a NaN never heals",
        fix: str = "lower training.lr, set training.grad_clip, or normalise observations and rewards",
    ) -> None:
        super().__init__(what, allowed, fix)


class RewardError(RltuneError):
    """Raised for a NaN or infinite reward, which is a fault of the environment and not a divergence of training.

    Args:
        what: Which reward, and when.
    """

    def __init__(
        self,
        what: str,
        allowed: str = "rewards that are finite numbers",
        fix: str = "look for a division by zero, a root or a logarithm in the environment's step",
    ) -> None:
        super().__init__(what, allowed, fix)
