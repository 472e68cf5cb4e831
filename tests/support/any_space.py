"""An environment of any spaces, which Hypothesis draws as JSON, and which takes no action outside of its own."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st


def make_space(about: Any) -> spaces.Space[Any]:
    """Make the space that `describe_spaces` has drawn."""
    kind, *given = about
    if kind == "Dict":
        return spaces.Dict({name: make_space(part) for name, part in given[0].items()})
    if kind == "Tuple":
        return spaces.Tuple([make_space(part) for part in given[0]])
    if kind == "Box":
        low, high, shape, dtype = given
        size = int(np.prod(shape))
        bounds = [np.resize(np.array(bound, np.float64), size).reshape(shape).astype(dtype) for bound in (low, high)]
        return spaces.Box(*bounds, dtype=np.dtype(dtype).type)
    if kind == "Discrete":
        return spaces.Discrete(given[0], start=given[1])
    if kind == "Sequence":
        return spaces.Sequence(make_space(given[0]))
    if kind == "Graph":
        return spaces.Graph(spaces.Box(-1.0, 1.0, (2,)), None)
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.array(given[0]), start=np.array(given[1]))
    return {"MultiBinary": spaces.MultiBinary, "Text": spaces.Text}[kind](*given)


INF = float("inf")
FLOATS = ("float16", "float32", "float64")
SHAPES = st.sampled_from([[], [1], [3], [2, 2], [2, 1, 3], [0], [1, 2, 1, 2]])
IMAGES = st.sampled_from([[8, 8, 3], [3, 9, 10], [16, 12, 1], [12, 12], [1, 20, 8], [2, 9, 9, 3]])


@st.composite
def draw_boxes(draw: Any, dtypes: Any = (*FLOATS, "int8", "int64", "uint8"), has_images: bool = False) -> Any:
    """Draw Boxes of any number of axes and any type, with bounds for each number or none."""
    dtype = draw(st.sampled_from(dtypes))
    if has_images and draw(st.booleans()):
        return ["Box", [0], [255 if dtype not in ("float16", "int8") else 1], draw(IMAGES), dtype]
    least = draw(st.lists(st.integers(0 if dtype == "uint8" else -5, 3), min_size=1, max_size=3))
    widths = draw(st.lists(st.integers(0 if dtype in FLOATS else 1, 4), min_size=1, max_size=3))
    size = max(len(least), len(widths))
    low = np.resize(least, size).astype(float)
    high = low + np.resize(widths, size)
    if dtype in FLOATS:
        ends = draw(st.lists(st.sampled_from(["none", "low", "high", "both"]), min_size=1, max_size=size))
        for index, infinite in enumerate(ends):
            low[index] = -INF if infinite in ("low", "both") else low[index]
            high[index] = INF if infinite in ("high", "both") else high[index]
    return ["Box", low.tolist(), high.tolist(), draw(SHAPES), dtype]


def _choices() -> Any:
    sizes = st.lists(st.integers(1, 4), min_size=1, max_size=3)
    return (
        st.tuples(st.just("Discrete"), st.integers(1, 5), st.integers(-3, 3)),
        sizes.flatmap(
            lambda nvec: st.tuples(
                st.just("MultiDiscrete"),
                st.just(nvec),
                st.lists(st.integers(-2, 2), min_size=len(nvec), max_size=len(nvec)),
            )
        ),
        st.tuples(st.just("MultiBinary"), st.sampled_from([1, 3, [2, 2]])),
    )


def _nest(leaves: Any) -> Any:
    names = st.sampled_from(["b", "a", "c c", "x.y", "7"])
    return st.recursive(
        leaves,
        lambda parts: st.one_of(
            st.tuples(st.just("Dict"), st.dictionaries(names, parts, min_size=1, max_size=3)),
            st.tuples(st.just("Tuple"), st.lists(parts, min_size=1, max_size=3)),
        ),
        max_leaves=4,
    )


REFUSED = (
    ("Text", 5),
    ("Graph",),
    ("Sequence", ("Discrete", 3, 0)),
    ("Discrete", 5000, 0),
    ("Box", [0], [2**40], [2], "int64"),
)
# One strategy for all that are refused, because Hypothesis draws evenly from what `one_of` has.
OBSERVATIONS = _nest(st.one_of(draw_boxes(has_images=True), *_choices(), draw_boxes(), st.sampled_from(REFUSED)))
ACTIONS = _nest(st.one_of(draw_boxes(), *_choices()))


class AnySpace(gymnasium.Env[Any, Any]):
    """Observes samples of its space, and refuses actions that its own space does not contain."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, observation: Any, action: Any, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space, self.action_space = make_space(observation), make_space(action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        is_inside = self.action_space.contains(action) or self.action_space.contains(np.asarray(action))
        assert is_inside, f"{action!r} is not in {self.action_space}"
        self.steps += 1
        return self.observation_space.sample(), 1.0, False, self.steps == 8, {}

    def render(self) -> Any:
        return np.full((16, 16, 3), self.steps, np.uint8)


gymnasium.register("AnySpace-v0", entry_point=AnySpace)
