"""Environments that raise at an illegal action, with a mask in each of the places and forms that there are."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as S


class Strict(gymnasium.Env[Any, Any]):
    """A walk of 30 steps in which other actions are legal at each step.

    Args:
        place: ``observation``, ``info`` or ``method``.
        form: ``flat``, ``tuple`` or ``joint``.
        sizes: The number of values of each choice.
        ones: Whether all actions are always legal.
        plain: Whether it has no mask, and no action is illegal.
        blocked_at: The step after which nothing is legal although the episode goes on; 0 for none.
        dependent: Whether the legal values of a choice depend on the other choices. Then ``form`` is ``joint``, or
            ``listed``: the info lists legal actions as ``moves``.
        image: Whether it also observes an image, beside a mask in the observation.
    """

    def __init__(
        self,
        place: str = "info",
        form: str = "flat",
        sizes: tuple[int, ...] = (5,),
        ones: bool = False,
        plain: bool = False,
        blocked_at: int = 0,
        dependent: bool = False,
        image: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.place, self.form, self.sizes, self.ones, self.plain = place, form, tuple(sizes), ones, plain
        self.blocked_at, self.render_mode = blocked_at, render_mode
        self.dependent, self.image = dependent, image
        self.action_space: Any = S.Discrete(sizes[0]) if len(sizes) == 1 else S.MultiDiscrete(sizes)
        self.observation_space: Any = S.Box(-1, 1, (3,), np.float32)
        if place == "observation" and not plain:
            count = int(np.prod(sizes) if form == "joint" else sum(sizes))
            mask: Any = S.MultiBinary(count)
            if form == "tuple":
                mask = S.Tuple([S.MultiBinary(size) for size in sizes])
            eye = {"eye": S.Box(0, 255, (12, 10, 3), np.uint8)} if image else {}
            self.observation_space = S.Dict(action_mask=mask, seen=self.observation_space, **eye)
        if place == "method" and not plain:
            self.action_masks = self._find_mask

    def _draw(self) -> None:
        self.legal = [self.np_random.random(size) < 0.4 for size in self.sizes]
        for flags in self.legal:
            flags[self.np_random.integers(len(flags))] = True
            flags |= self.ones
        # Which combinations are legal; one of them always is.
        table = self.np_random.random(self.sizes) < (0.4 if self.dependent else 2)
        table[tuple(int(np.argmax(flags)) for flags in self.legal)] = True
        self.table = table & np.logical_and.reduce(np.meshgrid(*self.legal, indexing="ij"))

    def _find_mask(self) -> Any:
        # Nothing is legal after the last step.
        is_open = self.at < 30 and self.at != (self.blocked_at or 30)
        legal = [flags & is_open for flags in self.legal]
        if self.form == "tuple":
            return tuple(flags.astype(np.int8) for flags in legal)
        if self.form == "joint":
            return (self.table & is_open).ravel().astype(np.int8)
        if self.form == "listed":
            return [tuple(map(int, move)) for move in np.argwhere(self.table & is_open)]
        return np.concatenate(legal).astype(np.int8)

    def _look(self) -> Any:
        seen = np.array([self.at / 30, float(self.legal[0][0]), float(self.legal[-1][-1])], np.float32)
        if self.place == "observation" and not self.plain:
            eye = {"eye": np.full((12, 10, 3), self.at, np.uint8)} if self.image else {}
            return {"action_mask": self._find_mask(), "seen": seen, **eye}
        return seen

    def _tell(self) -> dict[str, Any]:
        key = "moves" if self.form == "listed" else "action_mask"
        return {key: self._find_mask()} if self.place == "info" and not self.plain else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = 0
        self._draw()
        return self._look(), self._tell()

    def step(self, action: Any) -> Any:
        chosen = np.atleast_1d(action)
        if not self.plain:
            assert self.table[tuple(chosen)], f"illegal action {action}"
        self.at += 1
        self._draw()
        return self._look(), float(chosen[0]), self.at >= 30, False, self._tell()

    def render(self) -> Any:
        return np.zeros((16, 16, 3), np.uint8)


class Trap(gymnasium.Env[Any, Any]):
    """Has two states in turn. Action 1 is worth 1 in the first and action 0 in the second; action 2 is illegal."""

    action_space: Any = S.Discrete(3)
    observation_space: Any = S.Box(0, 1, (2,), np.float32)

    def _look(self) -> Any:
        state = self.at % 2
        return np.eye(2, dtype=np.float32)[state], {"action_mask": np.array([1, 1, 0], np.int8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = 0
        return self._look()

    def step(self, action: Any) -> Any:
        assert action != 2, "illegal"
        reward = float(action == 1 - self.at % 2)
        self.at += 1
        obs, info = self._look()
        return obs, reward, self.at == 8, False, info


gymnasium.register("Strict-v0", entry_point=Strict)
gymnasium.register("Trap-v0", entry_point=Trap)
STRICT, TRAP = f"{__name__}:Strict-v0", f"{__name__}:Trap-v0"
