"""Find the layout of an environment's observations, and turn observations into rows.

Any nesting of Dict and Tuple over Box, Discrete, MultiDiscrete and MultiBinary has a layout, and a user's subclass that
of its Gymnasium base. Other spaces are refused by the name of their leaf.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rltune.envs.facts import read_key
from rltune.envs.layout import FIRST, IMAGE, LAST, MASK, NONE, ONE_HOT, VECTOR, Key, Layout, Leaf
from rltune.envs.masks import MaskReader, MaskSource
from rltune.envs.spaces import FLOATS, find_observation_fault, make_network_actions, read_actions, require_names
from rltune.envs.spec import EnvSpec
from rltune.envs.step_count import read_reset, read_step
from rltune.errors import ABSENT, Cause, ConfigError, GuestError, choices, spell

SMALLEST_SIDE = 8  # An image has sides of at least so many pixels; smaller ones are boards.
MAX_ONE_HOT = 4096  # The most flags of a leaf of choices.
MAX_WHOLE = 2**24  # Beyond this, float32 does not have every whole number.
FLAT = "flat"
ENCODINGS = (FLAT, IMAGE, "channels_first", "channels_last", ONE_HOT)
"""What ``env.encode`` can make of a leaf: a vector of numbers, an image with its channels by the rule or in a given
axis, or the flags of choices."""
_CHANNELS = {"channels_first": FIRST, "channels_last": LAST}

WITHOUT = "rltune.envs.spaces:Without"


def make_layout(
    space: gymnasium.Space[Any],
    encode: Mapping[str, str] | None = None,
    mask: Sequence[Key] | None = None,
    num_flags: int = 0,
    sizes: Sequence[int] = (),
) -> Layout:
    """Make the layout of an environment's observations.

    Args:
        space: The environment's observation space.
        encode: What to make of leaves, by their names: one of `ENCODINGS`. Others follow from their spaces.
        mask: Where an observation has the flags of legal actions; empty if they come beside it, from the info or a
            method. None: there is no mask.
        num_flags: The number of these flags.
        sizes: The number of values of each choice, if the flags of choices become those of all combinations of them.

    Raises:
        ConfigError: A leaf cannot become numbers, or ``encode`` names a leaf that there is not, or what a leaf cannot
            become.
    """
    encode = dict(encode or {})
    leaves: list[Leaf] = []
    flags = Leaf(
        tuple(mask or ()), MASK, (num_flags,), "int8", 0, math.prod(sizes) if sizes else num_flags, tuple(sizes)
    )
    for path, part in list_leaves(space):
        if mask and path[: len(mask)] == tuple(mask):  # The flags of several parts are a Tuple or a Dict.
            if not any(leaf.kind == MASK for leaf in leaves):
                leaves.append(flags)
            continue
        name = Leaf(path, VECTOR, (), "").name
        leaves.append(_describe_leaf(path, part, name, encode.pop(name, None)))
    if encode:
        name, value = next(iter(encode.items()))
        allowed = choices(name, [leaf.name for leaf in leaves if leaf.kind != MASK])
        raise ConfigError(f"env.encode.{name}", value, ": there is no such leaf", allowed, f"~env.encode.{name}")
    if mask is not None and not mask:
        leaves.append(flags)
    require_names([leaf.name for leaf in leaves], f"the observations {_cut(space)}")
    layout = Layout(leaves)
    if not layout.num_columns - (layout.mask.size if layout.mask else 0):
        raise ConfigError(
            "", ABSENT, f"the observations {space} have no numbers", "at least one number", "observe a constant"
        )
    return layout


def list_leaves(space: gymnasium.Space[Any], path: tuple[Key, ...] = ()) -> Iterator[tuple[tuple[Key, ...], Any]]:
    """Yield the path and the space of each leaf of nested Dict and Tuple spaces, in the order of the space."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from list_leaves(part, (*path, read_key(key)))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from list_leaves(part, (*path, index))
    else:
        yield path, space


def _describe_leaf(path: tuple[Key, ...], space: Any, name: str, encoding: str | None) -> Leaf:
    """Describe a leaf, of which the columns are not known yet.

    Raises:
        ConfigError: It cannot become numbers, or not as ``env.encode`` says.
    """
    if encoding is not None and encoding not in ENCODINGS:
        raise ConfigError(
            f"env.encode.{name}", encoding, "is unknown", choices(encoding, ENCODINGS), f"env.encode.{name}={FLAT}"
        )
    shape = tuple(space.shape or ())
    is_number = isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
    if not is_number or np.dtype(space.dtype).kind not in "biuf":
        raise _refuse(name, space, "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these", path)
    leaf = Leaf(path, VECTOR, shape, str(np.dtype(space.dtype)), 0, math.prod(shape))
    if isinstance(space, spaces.MultiBinary) and encoding in (None, ONE_HOT):
        return leaf._replace(kind=ONE_HOT)
    if (isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and encoding is None) or encoding == ONE_HOT:
        return _describe_choices(leaf, space, encoding)
    if encoding == FLAT:
        return leaf
    channels = _find_channels(space) if encoding in (None, IMAGE) else _CHANNELS[encoding]
    if encoding is None:
        _check_whole(leaf, space)
        is_image = channels and _is_image(space, leaf._replace(channels=channels))
        return _describe_image(leaf, space, channels) if is_image else leaf
    is_box = isinstance(space, spaces.Box) and 0 not in shape
    if not is_box or len(shape) not in ((2, 3, 4) if encoding == IMAGE else (3, 4)):
        raise ConfigError(
            f"env.encode.{name}",
            encoding,
            f": {space} is no image",
            "a Box of three axes, or of four with frames first",
            f"env.encode.{name}={FLAT}",
        )
    return _describe_image(leaf, space, channels)


def _find_channels(space: Any) -> str:
    """Return the axis of the channels of what may be an image; empty if it has not the axes of one.

    The channels are the axis that is unlike two equal sides, and else the smaller one of the first and the last axis.
    A fourth axis before them is of stacked frames.
    """
    if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3, 4) or 0 in space.shape:
        return ""
    if len(space.shape) == 2:
        return NONE
    first, middle, last = space.shape[-3:]
    if first == middle != last:
        return LAST
    if first != middle == last:
        return FIRST
    return FIRST if first < last else LAST


def _is_image(space: Any, leaf: Leaf) -> bool:
    """Return whether a Box is an image by itself: with two sides of pixels, and of two axes only if it is of bytes.

    An axis before the three of an image is of frames if it is shorter than the sides.
    """
    height, width, _ = leaf.image_shape
    has_sides = min(height, width) >= SMALLEST_SIDE and leaf.num_frames < min(height, width)
    return has_sides and (leaf.channels != NONE or space.dtype == np.uint8)


def _describe_image(leaf: Leaf, space: Any, channels: str) -> Leaf:
    greatest = max(abs(float(space.low.min())), abs(float(space.high.max())))
    # Some use the greatest number of a type as infinity.
    is_bound = math.isfinite(greatest) and (np.dtype(space.dtype).itemsize <= 2 or greatest <= MAX_WHOLE)
    return leaf._replace(kind=IMAGE, channels=channels, scale=greatest if is_bound and greatest > 1 else 1.0)


def _describe_choices(leaf: Leaf, space: Any, encoding: str | None) -> Leaf:
    """Describe a leaf whose elements are one-hot."""
    if isinstance(space, spaces.Discrete):
        sizes, starts = [int(space.n)], [int(space.start)]
    elif isinstance(space, spaces.MultiDiscrete):
        sizes = [int(size) for size in space.nvec.reshape(-1)]
        starts = [int(start) for start in space.start.reshape(-1)]
    elif isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer):
        starts = [int(low) for low in space.low.flat]
        sizes = [int(high) - low + 1 for low, high in zip(starts, space.high.flat, strict=True)]
    else:
        raise ConfigError(
            f"env.encode.{leaf.name}", encoding, f": {space} has no choices", f"{FLAT}, {IMAGE}", f"{FLAT}"
        )
    if sum(sizes) > MAX_ONE_HOT:
        can_be_flat = max(abs(start) + size for start, size in zip(starts, sizes, strict=True)) <= MAX_WHOLE
        allowed = f"choices of at most {MAX_ONE_HOT} values together"
        if can_be_flat:
            allowed += f"; env.encode={{{leaf.name}: {FLAT}}} takes their numbers as they are"
        raise _refuse(leaf.name, space, allowed, leaf.path, f"would be {sum(sizes)} flags")
    return leaf._replace(kind=ONE_HOT, size=sum(sizes), sizes=tuple(sizes), starts=tuple(starts))


def _check_whole(leaf: Leaf, space: Any) -> None:
    """Refuse whole numbers that float32 does not have."""
    if leaf.dtype[0] not in "iu" or not leaf.size:
        return
    largest = max(abs(int(space.low.min())), abs(int(space.high.max())))
    if largest > MAX_WHOLE:
        allowed = f"whole numbers up to {MAX_WHOLE}; env.encode={{{leaf.name}: {FLAT}}} takes them rounded to float32"
        raise _refuse(leaf.name, space, allowed, leaf.path, f"has whole numbers up to {largest}")


def _refuse(name: str, space: Any, allowed: str, path: Sequence[Key], problem: str = "cannot become numbers") -> Any:
    """Make the error for a leaf, with the wrapper that leaves it out."""
    fix = "a wrapper of yours that observes something else: env.wrappers=[{entry_point: 'module:Class'}]"
    if path:
        fix = f"env.wrappers=[{{entry_point: '{WITHOUT}', kwargs: {{keys: [{name}]}}}}]"
    return ConfigError("", ABSENT, f"the leaf {name} of its observations, {_cut(space)}, {problem}", allowed, fix)


def _cut(space: Any) -> str:
    text = str(space)
    return text if len(text) <= 80 else f"{text[:77]}..."


def describe_leaf(leaf: Leaf) -> str:
    """Describe in one line what becomes of a leaf."""
    shape = " x ".join(map(str, leaf.shape)) or "one number"
    if leaf.kind == MASK:
        return f"{leaf.name}: mask of {leaf.size} actions"
    if leaf.kind == ONE_HOT:
        of = f" of {len(leaf.sizes)} choices" if len(leaf.sizes) > 1 else ""
        return f"{leaf.name}: one-hot, {leaf.size} flags{of if leaf.sizes else ', each by itself'}"
    if leaf.kind == IMAGE:
        height, width, channels = leaf.image_shape
        order = "without an axis of channels" if leaf.channels == NONE else f"channels {leaf.channels}"
        scale = f", divided by {leaf.scale:g}" if leaf.scale != 1 else ""
        other = {FIRST: LAST, LAST: FIRST}.get(leaf.channels)
        turn = f" (env.encode={{{leaf.name}: channels_{other}}} turns it)" if other else ""
        channels //= leaf.num_frames
        of = f" of {channels} channel{'s' * (channels != 1)}"
        of = f", {leaf.num_frames} frames{of}" if leaf.num_frames > 1 else of
        return f"{leaf.name}: image, {height} x {width}{of}, {order}{scale}{turn}"
    line = f"{leaf.name}: vector of {leaf.size}"
    if len(leaf.shape) > 1:
        can_be_image = leaf.size and len(leaf.shape) <= 4
        image = f"; env.encode={{{leaf.name}: {IMAGE}}} makes an image of it" if can_be_image else ""
        line += f", {shape} flattened{image}"
    return line


def find_layout(space: gymnasium.Space[Any], spec: EnvSpec | None = None) -> Layout:
    """Return the layout of an environment's observations, with the flags of legal actions that its check has found.

    Args:
        space: The environment's observation space.
        spec: The environment, as its build has it, or as `describe_agent` has it for one of several agents; None is one
            without settings.

    Raises:
        ConfigError: As `make_layout`.
    """
    if spec is None:
        return make_layout(space)
    mask = MaskSource.parse(spec.action_mask)
    if mask is None:
        return make_layout(space, spec.encode)
    # If a network chooses among all combinations of choices, then it needs a flag for each of them.
    sizes = mask.sizes if spec.joint_actions and not mask.joint and len(mask.sizes) > 1 else ()
    return make_layout(space, spec.encode, mask.path, mask.num_flags, sizes)


def is_row(space: gymnasium.Space[Any], spec: EnvSpec | None = None) -> bool:
    """Return whether observations are rows as the environment gives them: one vector of floats, and no mask.

    Args:
        space: The environment's observation space.
        spec: The environment; None is one without a mask.
    """
    if spec is not None and MaskSource.parse(spec.action_mask) is not None:
        return False
    return isinstance(space, spaces.Box) and space.dtype in FLOATS and len(space.shape) == 1


def find_network_spaces(
    observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], spec: EnvSpec | None = None
) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Return the spaces that networks see and choose in, for those of an environment.

    Args:
        observation_space: The environment's.
        action_space: The environment's.
        spec: As for `find_layout`.

    Raises:
        ConfigError: Networks cannot see such observations, or choose such actions.
    """
    layout = find_layout(observation_space, spec)
    seen = observation_space if is_row(observation_space, spec) else make_view_space(layout)
    return seen, make_network_actions(read_actions(action_space, joint=spec is not None and spec.joint_actions))


def make_row_space(layout: Layout) -> spaces.Box:
    """Return the Box of rows: vectors of float32, or of uint8 where there is an image of bytes."""
    if layout.num_bytes:
        return spaces.Box(0, 255, (layout.width,), np.uint8)
    return spaces.Box(-np.inf, np.inf, (layout.width,), np.float32)


def make_view_space(layout: Layout) -> spaces.Box:
    """Return the Box of a row's view as one vector of float32, which RLlib's networks see."""
    return spaces.Box(-np.inf, np.inf, (layout.num_columns,), np.float32)


class RowObservation(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Turn observations into rows, or into what RLlib's networks see of rows.

    Args:
        env: The environment.
        layout: That of its observations.
        view: Whether to give the rows' view, one vector of float32, also where there are images of bytes.
        mask: Where the environment says which actions are legal, if rows have the flags.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], layout: Layout, view: bool = False, mask: MaskSource | None = None
    ) -> None:
        super().__init__(env)
        self.layout, self._view = layout, view
        self._reader = mask and MaskReader(env, mask)
        self.observation_space = make_view_space(layout) if view else make_row_space(layout)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode.

        Raises:
            GuestError: The observation does not fit the space, or no action is legal.
        """
        observation, info = read_reset(self.env.reset(**kwargs))
        return self._make_row(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step.

        Raises:
            GuestError: The observation does not fit the space, or no action is legal although the episode goes on.
        """
        observation, reward, terminated, truncated, info = read_step(self.env.step(action))
        return self._make_row(observation, info, bool(terminated or truncated)), reward, terminated, truncated, info

    def _make_row(self, observation: Any, info: dict[str, Any], is_over: bool = False) -> Any:
        flags = self._reader and self._reader.read(observation, info, is_over=is_over)
        row = encode_observation(self.env.observation_space, self.layout, observation, flags)
        return self.layout.view(row) if self._view else row


def encode_observation(space: gymnasium.Space[Any], layout: Layout, observation: Any, mask: Any = None) -> Any:
    """Turn an observation into a row.

    Args:
        space: Its space.
        layout: That of the space.
        observation: What the environment returned.
        mask: The flags of legal actions, if they are not in the observation.

    Raises:
        GuestError: The observation does not fit the space; names the leaf and its value.
    """
    try:
        row = layout.encode(observation, mask)
        if math.isfinite(layout.numbers(row).sum()) or not (fault := find_observation_fault(space, observation)):
            return row
        raise fault
    except (ValueError, TypeError) as error:
        fault = find_observation_fault(space, observation)
        raise fault or GuestError(
            f"observation {spell(observation)} cannot be read ({error})",
            f"observations of {space}",
            "correct the observation_space, or what reset and step return",
            cause=Cause.OBSERVATION,
        ) from error
