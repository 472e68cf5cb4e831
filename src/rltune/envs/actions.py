"""Describe the actions of an environment as parts, each with outputs of the network, and turn outputs into actions.

This file imports only the standard library and NumPy, and nothing of rltune: it travels inside registered MLflow models
beside `rltune.policies.bundle_reader`. Everything here follows from the JSON values of the action space
(`rltune.envs.facts.describe_space`), which a policy bundle holds, too.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Path: TypeAlias = tuple[str | int, ...]
CHOICES, NUMBERS = "choices", "numbers"  # The kinds of parts.
# An integer of a type with more bits than this is unbounded at the type's own ends, as Gymnasium reads infinite bounds.
SMALL_BITS = 16


class ActionPart(NamedTuple):
    """A leaf of an action: choices among numbered values, or numbers within bounds.

    Attributes:
        path: Where it lies in the action: the keys of Dict spaces and the places in Tuple spaces, from the outside.
        type: The class of its space in Gymnasium.
        kind: ``choices`` for Discrete, MultiDiscrete, MultiBinary and a Box of bool, ``numbers`` for another Box.
        shape: Its shape.
        dtype: The type of its elements.
        sizes: How many values each element has; empty for numbers. Each is the number of logits of a categorical
            distribution.
        low: The least value of each element [elements]; None for numbers without any bound.
        high: The greatest value of each number [elements]; None without any bound.
        scaled: Which numbers have two bounds, to which the network's outputs from -1 to 1 are scaled.
        base: A number is ``base + (output + shift) * half``, clipped to its bounds; None where nothing is scaled.
        shift: See ``base``.
        half: See ``base``.
    """

    path: Path
    type: str
    kind: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sizes: tuple[int, ...]
    low: Any
    high: Any = None
    scaled: Any = None
    base: Any = None
    shift: Any = None
    half: Any = None

    @property
    def name(self) -> str:
        """Its path as text, such as ``arm.0``; empty for an action of one part."""
        return ".".join(map(str, self.path))

    @property
    def is_rounded(self) -> bool:
        """Whether outputs of the network are rounded to whole numbers."""
        return self.kind == NUMBERS and self.dtype.kind != "f"

    @property
    def num_elements(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)

    def decode(self, values: Any) -> Any:
        """Turn the network's outputs [rows, elements], an array or a tensor, into the values of the part."""
        if self.kind == CHOICES:
            return _cast(_cast(values, np.dtype(np.int64)) + self.low, self.dtype)
        if self.base is not None:
            values = self.base + (values + self.shift) * self.half
        if self.is_rounded:
            values = values.round()
        if self.low is not None:
            library: Any = np
            if not isinstance(values, np.ndarray):
                import torch as library
            # For few numbers, np.clip is slower.
            values = library.minimum(library.maximum(values, self.low), self.high)
        return _cast(values, self.dtype)


class ActionParts:
    """What a network chooses, part by part, and the environment's action that it stands for.

    The network's choice of one action is the index of a value if there is one choice and nothing else; otherwise a row
    with the indices of all choices and then all numbers, each in the order of the parts.

    Args:
        space: The action space of the environment as JSON values, see `rltune.envs.facts.describe_space`.
        joint: Whether the choices are one choice among all of their combinations, of which the last part is fastest.
            Whole numbers of a Box are choices then.
        clips: Whether numbers are only clipped to their bounds, and not scaled to them (RLlib's ``clip_actions``
            without ``normalize_actions``).

    Attributes:
        parts: The leaves of the action, in the order in which Gymnasium flattens them.
        sizes: The number of values of each choice that the network makes: the segments of its logits.
        num_numbers: The number of continuous outputs of the network.

    Raises:
        ValueError: The space has a leaf that is none of those.
    """

    def __init__(self, space: Mapping[str, Any], *, joint: bool = False, clips: bool = False) -> None:
        self.space, self.joint, self.clips = space, joint, clips
        self.parts = tuple(_list_parts(space, (), joint, clips))
        self._digits = tuple(size for part in self.parts for size in part.sizes)
        self.sizes = (math.prod(self._digits),) if joint and self._digits else self._digits
        self.num_numbers = sum(part.num_elements for part in self.parts if part.kind == NUMBERS)

    @property
    def is_nested(self) -> bool:
        """Whether an action is a dict or a tuple of parts."""
        return self.space["type"] in ("Dict", "Tuple")

    @property
    def is_choice(self) -> bool:
        """Whether the network's choice is a single index and nothing else."""
        return len(self.sizes) == 1 and not self.num_numbers

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of the network's choice of one action."""
        return () if self.is_choice else (len(self.sizes) + self.num_numbers,)

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """The type of the network's choices; beside numbers, float32 holds the indices, too."""
        return np.dtype(np.float32 if self.num_numbers else np.int64)

    @functools.cached_property
    def is_identity(self) -> bool:
        """Whether the environment takes the network's choice as it is, or as RLlib's connectors scale and clip it."""
        if len(self.parts) != 1 or self.parts[0].path or self.parts[0].shape != self.row_shape:
            return False
        part = self.parts[0]
        if part.kind == CHOICES:
            return part.type in ("Discrete", "MultiDiscrete") and part.dtype == np.int64 and not part.low.any()
        return part.dtype in (np.float32, np.float64) and (part.low is None or bool(part.scaled.all()))

    @functools.cached_property
    def strides(self) -> tuple[Any, Any] | None:
        """By how much the number of a combination grows with each choice, and the number of values of each."""
        if not (self.joint and self._digits):
            return None
        strides = [*itertools.accumulate(self._digits[:0:-1], int.__mul__, initial=1)][::-1]
        return np.array(strides[: len(self._digits)], np.int64), np.array(self._digits, np.int64)

    def list_ranges(self) -> Any:
        """List the greatest output of the network for each number: 1 where it is scaled, else infinite."""
        parts = [part for part in self.parts if part.kind == NUMBERS]
        ranges = [
            np.full(part.num_elements, np.inf) if part.scaled is None else np.where(part.scaled, 1.0, np.inf)
            for part in parts
        ]
        return np.concatenate([np.empty(0), *ranges]).astype(np.float32)

    def decode(self, chosen: Any) -> Any:
        """Turn the network's choices of a batch [rows, ...] into actions, each leaf with the batch's axis in front."""
        return self.fold(self.decode_parts(chosen))

    def decode_one(self, chosen: Any) -> Any:
        """Turn the network's choice of one action, as an array or as RLlib's tuple, into the environment's action."""
        if isinstance(chosen, tuple):
            chosen = np.concatenate([np.asarray(each, np.float32).reshape(-1) for each in chosen])
        leaves = self.decode_parts(np.asarray(chosen)[None])
        # A choice is a Python int, because some environments look it up by its type.
        return self.fold(
            [
                int(leaf[0]) if part.type == "Discrete" else leaf[0] if part.shape else np.asarray(leaf[0])
                for part, leaf in zip(self.parts, leaves, strict=True)
            ]
        )

    def decode_parts(self, chosen: Any) -> list[Any]:
        """Turn the network's choices of a batch [rows, ...] into the leaves of actions [rows, ...], one for each part.

        Args:
            chosen: A NumPy array; or a tensor, if this came from `map_arrays`.
        """
        rows = chosen.reshape(chosen.shape[0], -1)
        if self.strides is not None:
            rows = rows // self.strides[0] % self.strides[1]
        leaves, first, number = [], 0, len(self._digits)
        for part in self.parts:
            count = part.num_elements
            if part.kind == CHOICES:
                values, first = rows[:, first : first + count], first + count
            else:
                values, number = rows[:, number : number + count], number + count
            leaves.append(part.decode(values).reshape(values.shape[0], *part.shape))
        return leaves

    def encode(self, action: Any) -> Any:
        """Turn one action of the environment into the network's choice: the reverse of `decode_one`."""
        leaves = self.unfold(action)
        kinds: dict[str, list[Any]] = {CHOICES: [], NUMBERS: []}
        for part, leaf in zip(self.parts, leaves, strict=True):
            kinds[part.kind].append(_encode_part(part, leaf))
        if self.strides is not None:
            return np.int64(np.ravel_multi_index(tuple(np.concatenate(kinds[CHOICES])), self._digits))
        row = np.concatenate([*kinds[CHOICES], *kinds[NUMBERS]]).astype(self.row_dtype)
        return row[0] if self.is_choice else row

    def flatten_mask(self, mask: Any) -> Any:
        """Return a mask that has the form of the action space as the flags [..., values] of its choices in their order.

        Gymnasium's spaces sample with such masks. Dicts are read by their keys. None says that all values of a part are
        legal, and stands in the place of numbers. A mask of another form is returned as it is.

        Raises:
            ValueError: The flags of a choice are missing, or of another number.
        """
        if isinstance(mask, np.ndarray) and mask.dtype == object:  # Gymnasium's vector environments have one of lists.
            return np.stack([np.concatenate([*_list_arrays(self.flatten_mask(each))]) for each in mask.ravel()])
        if not _has_parts(self.space, mask):
            return mask
        masks = list(_walk_mask(self.space, mask))
        pairs = [(part, each) for part, each in zip(self.parts, masks, strict=True) if part.kind == CHOICES]
        flags = [None if each is None else _read_flags(part, each) for part, each in pairs]
        batch = next((each.shape[:-1] for each in flags if each is not None), ())
        legal = [np.ones((*batch, sum(part.sizes)), bool) for part, _ in pairs]
        return np.concatenate([some if each is None else each for some, each in zip(legal, flags, strict=True)], -1)

    def fold(self, leaves: list[Any]) -> Any:
        """Put the leaves of an action, one for each part, into its nested form."""
        return _fold(self.space, iter(leaves))

    def unfold(self, action: Any) -> list[Any]:
        """List the leaves of an action, or of a batch: the reverse of `fold`."""
        return list(_walk(self.space, action))

    def map_arrays(self, convert: Callable[[Any], Any]) -> ActionParts:
        """Return this with converted arrays, such as tensors for an exported graph."""
        other = ActionParts(self.space, joint=self.joint, clips=self.clips)
        other.parts = tuple(
            part._replace(
                **{name: convert(each) for name, each in part._asdict().items() if isinstance(each, np.ndarray)}
            )
            for part in self.parts
        )
        other.strides = self.strides and (convert(self.strides[0]), convert(self.strides[1]))
        return other


def split_batch(actions: Any, count: int) -> list[Any]:
    """List the actions of a batch, whose leaves have the batch's axis in front."""
    if isinstance(actions, dict):
        parts = {key: split_batch(part, count) for key, part in actions.items()}
        return [{key: part[row] for key, part in parts.items()} for row in range(count)]
    if isinstance(actions, tuple):
        columns = [split_batch(part, count) for part in actions]
        return [tuple(part[row] for part in columns) for row in range(count)]
    return list(actions)


def _list_parts(space: Mapping[str, Any], path: Path, joint: bool, clips: bool) -> Iterator[ActionPart]:
    """Yield the leaves of a space, in the order in which Gymnasium flattens them."""
    if space["type"] in ("Dict", "Tuple"):
        for key, child in _list_children(space):
            yield from _list_parts(child, (*path, key), joint, clips)
        return
    kind, shape, dtype, low, high = _read_leaf(space, joint)
    part = ActionPart(path, space["type"], kind, shape, dtype, (), None)
    if kind == CHOICES:
        sizes = tuple(most - least + 1 for least, most in zip(low, high, strict=True))
        yield part._replace(sizes=sizes, low=np.array(low, np.int64))
        return
    # Bounds of half precision and of whole numbers are computed in a wider type, that of the network's outputs or more.
    wide = np.promote_types(dtype, np.float32)
    least, most = _round_inwards(low, wide, np.inf), _round_inwards(high, wide, -np.inf)
    if np.isinf([least, most]).all():
        yield part
        return
    scaled = _find_bounded(dtype, least, most)
    part = part._replace(low=least, high=most, scaled=scaled)
    if not clips and scaled.any():
        # In the precision of the bounds, as RLlib does.
        half = np.divide(most - least, 2, out=np.ones_like(most), where=scaled)
        part = part._replace(base=np.where(scaled, least, wide.type(0)), shift=scaled.astype(np.float32), half=half)
    yield part


def _round_inwards(bounds: list[Any], dtype: np.dtype[Any], inside: float) -> np.ndarray:
    """Return bounds as floats; a whole number that is none becomes the next float inside of the bound."""
    rounded = np.array(bounds, dtype)
    exact, is_outside = rounded.tolist(), np.zeros(len(bounds), bool)
    for index, (value, bound) in enumerate(zip(exact, bounds, strict=True)):
        is_outside[index] = value > bound if inside < 0 else value < bound
    return np.where(is_outside, np.nextafter(rounded, dtype.type(inside)), rounded)


def _read_leaf(
    space: Mapping[str, Any], joint: bool
) -> tuple[str, tuple[int, ...], np.dtype[Any], list[Any], list[Any]]:
    """Return kind, shape, type, and the least and the greatest value of each element."""
    match space["type"]:
        case "Discrete":
            low = [space["start"]]
            return CHOICES, (), np.dtype(space.get("dtype", "int64")), low, [low[0] + space["n"] - 1]
        case "MultiDiscrete":
            sizes, starts = (np.array(space[key], object) for key in ("nvec", "start"))
            high = (starts + sizes - 1).reshape(-1).tolist()
            return CHOICES, sizes.shape, np.dtype(space["dtype"]), starts.reshape(-1).tolist(), high
        case "MultiBinary":
            shape = tuple(np.atleast_1d(space["n"]).tolist())
            return CHOICES, shape, np.dtype(np.int8), [0] * math.prod(shape), [1] * math.prod(shape)
        case "Box":
            shape, dtype = tuple(space["shape"]), np.dtype(space["dtype"])
            exact = np.dtype(np.float64 if dtype.kind == "f" else object)  # Integers of 64 bits are no floats.
            low, high = (
                np.broadcast_to(np.array(space[key], exact), math.prod(shape)).tolist() for key in ("low", "high")
            )
            return CHOICES if dtype.kind == "b" or (joint and dtype.kind in "iu") else NUMBERS, shape, dtype, low, high
    raise ValueError(f"{space['type']} is no part of an action: known are Discrete, MultiDiscrete, MultiBinary and Box")


def _find_bounded(dtype: np.dtype[Any], low: np.ndarray, high: np.ndarray) -> Any:
    """Return which elements have two bounds; Gymnasium makes an infinite bound of an integer the end of its type."""
    if dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            return np.isfinite(high - low)  # Some use the greatest float as infinity.
    if dtype.itemsize * 8 <= SMALL_BITS:
        return np.ones(len(low), bool)
    ends = np.iinfo(dtype)
    return (high < _round_inwards([ends.max], high.dtype, -np.inf)) & ((low > ends.min) | (dtype.kind == "u"))


def _list_children(space: Mapping[str, Any]) -> list[tuple[Any, Mapping[str, Any]]]:
    """List the keys or places of a Dict or Tuple space with what lies there."""
    return list(space["spaces"] if space["type"] == "Dict" else enumerate(space["spaces"]))


def _encode_part(part: ActionPart, leaf: Any) -> Any:
    """Turn the values of a part into the network's outputs [elements]."""
    values = np.asarray(leaf).reshape(-1)
    if part.kind == CHOICES:
        return values.astype(np.int64) - part.low
    if part.base is None:
        return values
    return (values - part.base) / np.where(part.half > 0, part.half, 1) - part.shift


def _has_parts(space: Mapping[str, Any], mask: Any) -> bool:
    """Return whether a mask has the parts of a Dict or Tuple space, and is no array."""
    if space["type"] == "Dict":
        return isinstance(mask, Mapping)
    is_nested = isinstance(mask, tuple | list) and len(mask) == len(space.get("spaces", ()))
    return (
        space["type"] == "Tuple"
        and is_nested
        and (isinstance(mask, tuple) or any(part is None or isinstance(part, Mapping | tuple) for part in mask))
    )


def _walk_mask(space: Mapping[str, Any], mask: Any) -> Iterator[Any]:
    """Yield the mask of each leaf of an action; None for one without."""
    if space["type"] not in ("Dict", "Tuple"):
        yield mask
        return
    for key, part in _list_children(space):
        try:
            inner = None if mask is None else mask[key]
        except (KeyError, IndexError):
            if any(each.kind == CHOICES for each in _list_parts(part, (), False, False)):
                raise ValueError(f"there is no {key}") from None
            inner = None
        yield from _walk_mask(part, inner)


def _read_flags(part: ActionPart, mask: Any) -> Any:
    """Return the flags [..., values] of a part of an action, which may have a mask for each of its elements."""
    is_parted = isinstance(mask, tuple) or (isinstance(mask, list) and any(isinstance(each, tuple) for each in mask))
    flags = np.concatenate([*_list_arrays(mask)], axis=-1) if is_parted else np.asarray(mask)
    count = sum(part.sizes)
    if flags.shape[-1:] != (count,):
        flags = flags.reshape(-1) if flags.size == count else flags.reshape(len(flags), -1)
    if flags.shape[-1] != count:
        raise ValueError(f"{part.name} has {count} values; got {flags.shape[-1]} flags")
    return flags


def _list_arrays(mask: Any) -> Iterator[Any]:
    """Yield the arrays of nested tuples and lists."""
    if isinstance(mask, tuple | list):
        for each in mask:
            yield from _list_arrays(each)
    else:
        yield np.atleast_1d(mask)


def _cast(values: Any, dtype: np.dtype[Any]) -> Any:
    """Cast an array or a tensor; one whose type is as good for Gymnasium's spaces stays as it is."""
    if isinstance(values, np.ndarray):
        is_as_good = values.dtype == dtype or np.can_cast(values.dtype, dtype)
        return values if is_as_good else values.astype(dtype)
    import torch

    is_as_good = np.can_cast(str(values.dtype).removeprefix("torch."), dtype)
    return values if is_as_good else values.to(getattr(torch, dtype.name))


def _walk(space: Mapping[str, Any], action: Any) -> Iterator[Any]:
    """Yield the leaves of an action."""
    if space["type"] in ("Dict", "Tuple"):
        for key, part in _list_children(space):
            yield from _walk(part, action[key])
    else:
        yield action


def _fold(space: Mapping[str, Any], leaves: Iterator[Any]) -> Any:
    """Build the nested form of an action from its leaves."""
    if space["type"] == "Dict":
        return {key: _fold(part, leaves) for key, part in space["spaces"]}
    if space["type"] == "Tuple":
        return tuple(_fold(part, leaves) for part in space["spaces"])
    return next(leaves)
