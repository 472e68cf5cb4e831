"""Describe observations by a layout: which columns of a flat row are which leaf of an observation.

Environments, rollouts, replay memories, env runners, networks, policy bundles and exports read a `Layout` and nothing
else about observations. `rltune.envs.observations` makes one from a space of Gymnasium's.

A row consists of at most two flat parts, each of which may be empty: ``numbers`` (float32) and ``bytes`` (uint8, the
images of bytes). Without bytes a row is its numbers, one vector of float32. With bytes it is one array of uint8, in
which the bytes come first and the memory of the numbers follows; `Layout.numbers` and `Layout.bytes` are views of the
two parts. So one array is stored, sent and pickled, and an image takes one byte for each of its values. Networks of
RLlib see a row as one vector of float32, its view: the bytes, then the numbers (`Layout.view`).

This file imports only the standard library and NumPy, and nothing of rltune, because it travels inside registered
models, as `rltune.policies.bundle_reader` does.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

VECTOR, IMAGE, ONE_HOT, MASK = "vector", "image", "one_hot", "mask"
"""The kinds of leaves: numbers, which alone are normalised; images, which a CNN sees; choices, as flags of 0 and 1; and
the flags of legal actions, which no network sees."""

KINDS = (VECTOR, IMAGE, ONE_HOT, MASK)
"""The order in which kinds lie in ``numbers``: vectors are its first columns, and a mask is its last ones."""

FIRST, LAST, NONE = "first", "last", "none"
"""Where an image has its channels: in the first or the last axis, or in none, which is one channel."""

WHOLE = "observations"
"""The name of the only leaf of an observation that is no Dict and no Tuple."""

ILLEGAL = -(2.0**100)
"""The logit or value of an illegal action: below the values that can be learned, since the square of their errors would
not be finite. Minus infinity would become NaN beside a probability of zero."""

WORD = 4  # The bytes of a float32; numbers begin at a multiple of it.
Key = str | int


class Leaf(NamedTuple):
    """A part of an observation that is no Dict and no Tuple, and its columns.

    Attributes:
        path: The keys and indices that lead to it; empty for a whole observation, and for a mask that is not in it.
        kind: One of `KINDS`.
        shape: The shape of the part.
        dtype: The type of its numbers in the environment.
        begin: Its first column in ``bytes`` or ``numbers``.
        size: How many columns it has.
        sizes: The number of values of each element of a one-hot leaf; empty if its elements are flags of 0 and 1. Of a
            mask, the number of values of each choice if its columns are of all combinations of them (`join_flags`).
        starts: The least value of each element of a one-hot leaf.
        scale: By what networks divide an image; its greatest absolute value.
        channels: Where an image has its channels: `FIRST`, `LAST` or `NONE`.
    """

    path: tuple[Key, ...]
    kind: str
    shape: tuple[int, ...]
    dtype: str
    begin: int = 0
    size: int = 0
    sizes: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    scale: float = 1.0
    channels: str = ""

    @property
    def name(self) -> str:
        """Its path as people type it, such as ``robot.camera``."""
        return ".".join(map(str, self.path)) or ("action_mask" if self.kind == MASK else WHOLE)

    @property
    def is_bytes(self) -> bool:
        """Whether its columns lie in ``bytes``."""
        return self.kind == IMAGE and self.dtype == "uint8"

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """The height, the width and the channels of an image, of which frames that are stacked have one set each."""
        shape = (*self.shape, 1) if self.channels == NONE else self.shape[-3:]
        channels, height, width = shape if self.channels == FIRST else (shape[2], *shape[:2])
        return height, width, self.num_frames * channels

    @property
    def num_frames(self) -> int:
        """The frames of an image that are stacked in an axis before the three of each, as Gymnasium stacks them."""
        return self.shape[0] if len(self.shape) > 3 else 1


class Layout:
    """The leaves of an observation and their columns in a row.

    Args:
        leaves: In the order of the observation, of which `begin` is not read: columns are given here.

    Attributes:
        leaves: With their columns.
        num_numbers: The columns of ``numbers``.
        num_bytes: The columns of ``bytes``.
        num_vector: How many of the first columns of ``numbers`` are of vectors; these alone are normalised.
        images: The leaves that are images.
        mask: The leaf with the flags of legal actions, whose columns are the last; None without one.
        dtype: The type of rows.
        width: The length of a row in memory.
        numbers_begin: Where the numbers begin in a row of bytes: at a whole word, since torch reads float32 only there.
    """

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self.num_numbers = self.num_bytes = 0
        placed: dict[int, Leaf] = {}
        for index in sorted(range(len(leaves)), key=lambda index: KINDS.index(leaves[index].kind)):
            leaf = leaves[index]
            if leaf.is_bytes:
                placed[index], self.num_bytes = leaf._replace(begin=self.num_bytes), self.num_bytes + leaf.size
            else:
                placed[index], self.num_numbers = leaf._replace(begin=self.num_numbers), self.num_numbers + leaf.size
        self.leaves = tuple(placed[index] for index in range(len(leaves)))
        self.num_vector = sum(leaf.size for leaf in leaves if leaf.kind == VECTOR)
        self.images = tuple(leaf for leaf in self.leaves if leaf.kind == IMAGE)
        self.mask = next((leaf for leaf in self.leaves if leaf.kind == MASK), None)
        self.numbers_begin = find_numbers(self.num_bytes)
        self.dtype = np.dtype(np.uint8 if self.num_bytes else np.float32)
        self.width = self.numbers_begin + WORD * self.num_numbers if self.num_bytes else self.num_numbers

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Layout:
        """Make the layout that `to_dict` has described.

        Raises:
            ValueError: It describes none.
        """
        try:
            leaves = []
            for about in description["leaves"]:
                lists = {key: tuple(value) for key, value in about.items() if isinstance(value, list)}
                leaf = Leaf(**{**about, **lists})
                of_sizes = math.prod if leaf.kind == MASK else sum
                columns = of_sizes(leaf.sizes) if leaf.sizes else math.prod(leaf.shape)
                if leaf.kind not in KINDS or leaf.size != columns or leaf.size < 0:
                    raise ValueError(f"the leaf {leaf.name} of kind {leaf.kind} has {leaf.size} columns")
                leaves.append(leaf)
            return cls(leaves)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no layout of observations: {error!r}") from error

    def to_dict(self) -> dict[str, Any]:
        """Return the layout as JSON values; `from_dict` reads them."""
        leaves = []
        for leaf in self.leaves:
            about = {key: list(value) if isinstance(value, tuple) else value for key, value in leaf._asdict().items()}
            leaves.append(about)
        return {"leaves": leaves}

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same leaves in the same columns."""
        return isinstance(other, Layout) and self.leaves == other.leaves

    def __hash__(self) -> int:
        """Return a hash of the leaves."""
        return hash(self.leaves)

    @property
    def is_vector(self) -> bool:
        """Whether an observation is one vector and nothing else."""
        return len(self.leaves) == 1 and self.leaves[0].kind == VECTOR and not self.leaves[0].path

    @property
    def is_row(self) -> bool:
        """Whether an observation is a row as the environment gives it: one vector of floats."""
        leaf = self.leaves[0]
        return self.is_vector and len(leaf.shape) == 1 and leaf.dtype in ("float32", "float64")

    @property
    def num_columns(self) -> int:
        """The columns of a row's view as one vector of float32, which networks see."""
        return self.num_bytes + self.num_numbers

    def columns(self, leaf: Leaf) -> slice:
        """Return the columns of a leaf in a row's view."""
        begin = leaf.begin + (0 if leaf.is_bytes else self.num_bytes)
        return slice(begin, begin + leaf.size)

    @property
    def vector_columns(self) -> slice:
        """The columns of a row's view that are of vectors."""
        return slice(self.num_bytes, self.num_bytes + self.num_vector)

    @property
    def other_columns(self) -> list[slice]:
        """The columns of a row's view that are of no image and no mask, as few slices as possible, in their order."""
        slices: list[slice] = []
        for leaf in sorted(self.leaves, key=lambda leaf: self.columns(leaf).start):
            if leaf.kind in (IMAGE, MASK) or not leaf.size:
                continue
            columns = self.columns(leaf)
            if slices and slices[-1].stop == columns.start:
                columns = slice(slices.pop().start, columns.stop)
            slices.append(columns)
        return slices

    # -- Rows ------------------------------------------------------------------------------------------

    def numbers(self, rows: Any) -> Any:
        """Return the numbers [..., num_numbers] of rows as a view of float32, which may be written."""
        return rows[..., self.numbers_begin :].view(np.float32) if self.num_bytes else rows

    def bytes(self, rows: Any) -> Any:
        """Return the bytes [..., num_bytes] of rows as a view of uint8."""
        return rows[..., : self.num_bytes] if self.num_bytes else np.zeros((*rows.shape[:-1], 0), np.uint8)

    def view(self, rows: Any) -> Any:
        """Return rows [..., width] as vectors of float32 [..., num_columns], as networks see them.

        Args:
            rows: An array or a tensor; what is a view already stays as it is.
        """
        if not self.num_bytes or rows.dtype.itemsize == WORD:
            return rows
        shape, numbers = (*rows.shape[:-1], self.num_columns), rows[..., self.numbers_begin :]
        seen: Any
        if isinstance(rows, np.ndarray):
            seen = np.empty(shape, np.float32)
        else:
            import torch

            seen, numbers = torch.empty(shape, device=rows.device), numbers.contiguous()
        seen[..., : self.num_bytes] = rows[..., : self.num_bytes]
        if self.num_numbers:
            seen[..., self.num_bytes :] = numbers.view(seen.dtype)
        return seen

    def encode(self, observation: Any, mask: Any = None) -> Any:
        """Turn one observation into a row [width].

        Args:
            observation: As the environment returned it.
            mask: The flags of legal actions, if they are not in the observation.

        Raises:
            ValueError: A leaf is missing, of another size, or has a value that the row cannot hold; names it.
        """
        parts = []
        for leaf in self.leaves:
            part = _find(leaf, observation, mask)
            parts.append(read_flags(part) if leaf.kind == MASK else np.asarray(part))
        return self._make_rows(parts, 1)[0]

    def _make_rows(self, parts: Sequence[Any], count: int) -> Any:
        """Make rows [count, width] of the values of all leaves, each [count, ...] or, of a single row, [...]."""
        rows = np.zeros((count, self.width), self.dtype)
        numbers, room = self.numbers(rows), self.bytes(rows)
        for leaf, part in zip(self.leaves, parts, strict=True):
            target = (room if leaf.is_bytes else numbers)[:, leaf.begin : leaf.begin + leaf.size]
            _write(leaf, part.reshape(count, -1), target)
        return rows

    def encode_batch(self, observations: Any, masks: Any = None) -> tuple[Any, bool]:
        """Turn one observation or a batch of them into rows [n, width].

        Args:
            observations: One observation, or one in which each leaf has one more axis in front, as Gymnasium's vector
                environments and `stack` give it.
            masks: The flags of legal actions [actions] or [n, actions], if they are not in the observation.

        Returns:
            The rows, and whether it was a single observation. Rows of one vector have its own type.

        Raises:
            ValueError: It fits neither; names the leaf.
        """
        parts = [_read(leaf, _find(leaf, observations, masks)) for leaf in self.leaves]
        is_single = self.is_of_one(parts)
        count = 1
        for leaf, part in zip(self.leaves, parts, strict=True):
            if is_single:
                continue
            if part.ndim != len(leaf.shape) + 1 or part.shape[1:] != leaf.shape:
                batch = f"(n, {str(leaf.shape)[1:]}" if leaf.shape else "(n,)"
                of = "" if leaf.name == WHOLE else f" of {leaf.name}"
                raise ValueError(f"an observation{of} has shape {leaf.shape}, a batch {batch}; got {part.shape}")
            if leaf is not self.leaves[0] and len(part) != count:
                raise ValueError(f"a batch has {count} of {self.leaves[0].name} and {len(part)} of {leaf.name}")
            count = len(part)
        if self.is_vector:  # Its numbers keep their type, in which filters compute.
            return parts[0].reshape(count, -1), is_single
        return self._make_rows(parts, count), is_single

    def is_of_one(self, parts: Sequence[Any]) -> bool:
        """Return whether these are the leaves of one observation, whose parts may have another shape as in training."""
        pairs = list(zip(self.leaves, parts, strict=True))
        if all(part.shape == leaf.shape for leaf, part in pairs):
            return True
        is_batch = all(part.shape[1:] == leaf.shape and part.ndim == len(leaf.shape) + 1 for leaf, part in pairs)
        is_batch = is_batch and len({len(part) for part in parts}) == 1
        has_parts = all(leaf.path or leaf.kind == MASK for leaf in self.leaves)
        return has_parts and not is_batch and all(part.size == math.prod(leaf.shape) for leaf, part in pairs)

    def is_single(self, observations: Any) -> bool:
        """Return whether this is one observation and no batch of them."""
        leaves = [leaf for leaf in self.leaves if leaf.kind != MASK]
        return Layout(leaves).is_of_one([np.asarray(_find(leaf, observations)) for leaf in leaves])

    def find_mask(self, observations: Any) -> Any:
        """Return what an observation, or a batch of them, has as its mask; None without one there.

        Raises:
            ValueError: It is missing.
        """
        return _find(self.mask, observations) if self.mask is not None and self.mask.path else None

    def read_named(self, leaves: Mapping[str, Any]) -> Any:
        """Return the observation, or the batch, that has these leaves by their names; None if others are named."""
        names = {leaf.name: leaf.path for leaf in self.leaves if leaf.path or leaf.kind != MASK}
        return nest({path: leaves[name] for name, path in names.items()}) if set(names) == set(leaves) else None

    def name_leaves(self, observation: Any) -> dict[str, Any]:
        """Return the leaves of an observation, or of a batch, by their names, as `read_named` takes them."""
        return {leaf.name: _find(leaf, observation) for leaf in self.leaves if leaf.path or leaf.kind != MASK}

    def stack(self, observations: Sequence[Any], read_mask: Callable[[Any], Any] = lambda mask: mask) -> Any:
        """Stack single observations into one batch, in which each leaf has one more axis in front.

        Leaves lie at their paths, in dicts and, where the path has an index, in tuples.

        Args:
            observations: Observations of one layout.
            read_mask: Reads what is the mask of each.
        """
        leaves = {}
        for leaf in self.leaves:
            if leaf.kind == MASK and not leaf.path:  # It comes beside the observations.
                continue
            parts = [_find(leaf, each) for each in observations]
            if leaf.kind == MASK:
                leaves[leaf.path] = np.stack([read_flags(read_mask(part)) for part in parts])
                continue
            arrays = [np.asarray(part) for part in parts]
            has_other_form = leaf.path and all(array.size == math.prod(leaf.shape) for array in arrays)
            leaves[leaf.path] = np.stack([array.reshape(leaf.shape) if has_other_form else array for array in arrays])
        return nest(leaves)


def find_numbers(num_bytes: int) -> int:
    """Return where the numbers begin in a row of bytes: at the next whole word."""
    return -(-num_bytes // WORD) * WORD


def _find(leaf: Leaf, observation: Any, mask: Any = None) -> Any:
    """Return the part of an observation that is a leaf, or the mask beside it.

    Raises:
        ValueError: It is not there.
    """
    if leaf.kind == MASK and mask is not None:
        return mask
    part = observation
    if leaf.kind == MASK and not leaf.path:
        raise ValueError("there is no action_mask, and a policy that was trained with one does not act without it")
    for key in leaf.path:
        try:
            part = part[key]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"an observation has {leaf.name}; got {_shorten(observation)}") from None
    return part


def nest(leaves: Mapping[tuple[Key, ...], Any]) -> Any:
    """Put leaves, by their paths, into the form of an observation: dicts and tuples, or a leaf alone."""
    if () in leaves:
        return leaves[()]
    keys = list(dict.fromkeys(path[0] for path in leaves))
    parts = {key: nest({path[1:]: leaf for path, leaf in leaves.items() if path[0] == key}) for key in keys}
    # Only a Dict has leaves without an index, and one with whole numbers for keys is read by them as a tuple is.
    return tuple(parts[key] for key in sorted(keys)) if keys == list(range(len(keys))) else parts


def _shorten(value: Any) -> str:
    keys = f" of {', '.join(map(str, value))}" if isinstance(value, Mapping) else ""
    return f"{type(value).__name__}{keys}"[:80]


def _read(leaf: Leaf, part: Any) -> Any:
    """Return a part of one observation or of a batch as an array of numbers; flags are [flags] or [n, flags]."""
    if leaf.kind == MASK:
        flags, count = read_flags(part, -1), leaf.shape[0]
        if flags.shape[-1:] == (count,) and flags.ndim <= 2:
            return flags
        return flags.reshape(-1) if flags.size == count else flags.reshape(len(flags), -1)
    array = np.asarray(part)
    if array.dtype.kind not in "fiub":
        of = "" if leaf.name == WHOLE else f" {leaf.name}"
        raise ValueError(f"observations{of} are numbers; got {array.dtype} ({str(part)[:40]})")
    return array


def read_flags(mask: Any, axis: int | None = None) -> Any:
    """Return a mask as one array of flags; Gymnasium's masks of several parts are tuples or dicts of arrays.

    Args:
        mask: The flags.
        axis: Along which axis parts follow each other; None makes one vector of all flags.
    """
    if isinstance(mask, Mapping):
        mask = tuple(mask.values())
    try:
        if not (isinstance(mask, tuple) and any(map(np.ndim, mask))):
            array = np.asarray(mask)
            return array.reshape(-1) if axis is None else array
    except ValueError:  # A list of vectors of one length may be a batch; others are those of several parts.
        pass
    return np.concatenate([read_flags(part, axis) for part in mask], axis=0 if axis is None else axis)


def join_flags(flags: Any, sizes: Sequence[int]) -> Any:
    """Return a flag for each combination of choices [..., combinations], of those for each value [..., values].

    Args:
        flags: A flag for each value of each choice, booleans in an array or a tensor.
        sizes: The number of values of each choice; combinations are in the order in which the last one is fastest.
            Without sizes the flags stay as they are.
    """
    joined, begin = flags[..., : sizes[0]] if sizes else flags, sum(sizes[:1])
    for size in sizes[1:]:
        part, begin = flags[..., begin : begin + size], begin + size
        joined = (joined[..., :, None] & part[..., None, :]).reshape(*joined.shape[:-1], -1)
    return joined


def _write(leaf: Leaf, rows: Any, target: Any) -> None:
    """Write a leaf's values [n, elements] into its columns [n, size] of rows.

    Raises:
        ValueError: There are more or fewer of them, or a value has no place.
    """
    elements = leaf.shape[0] if leaf.kind == MASK else len(leaf.sizes) or leaf.size
    if rows.shape[1] != elements:
        raise ValueError(f"{leaf.name} has {elements} numbers; got {rows.shape[1]}")
    if leaf.kind == ONE_HOT:
        _write_choices(leaf, rows, target)
    elif leaf.kind == MASK:
        if rows.dtype.kind != "b" and not ((is_flag := (rows == 0) | (rows == 1)).all()):
            raise ValueError(f"{leaf.name} has flags of 0 and 1; got {rows[~is_flag][0]}")
        target[:] = join_flags(rows.astype(bool), leaf.sizes)
    else:
        # Another type is only a loss if its numbers are not the same in the type of the space.
        if leaf.is_bytes and rows.dtype != np.uint8:
            with np.errstate(invalid="ignore"):
                are_bytes = (rows >= 0) & (rows <= 255) & (rows == np.floor(rows))
            if not are_bytes.all():
                value = rows[~are_bytes][0]
                raise ValueError(f"{leaf.name} has whole numbers from 0 to 255; got {rows.dtype}, {value}")
        target[:] = rows


def _write_choices(leaf: Leaf, rows: Any, target: Any) -> None:
    # A single choice is frequent, and takes a tenth of the time without arrays.
    is_one = leaf.sizes and rows.size == 1 and rows.dtype.kind in "iu"
    if is_one and 0 <= (place := rows.item() - leaf.starts[0]) < leaf.size:
        target[0, place] = 1
        return
    starts = np.array(leaf.starts) if leaf.sizes else 0
    counts = np.array(leaf.sizes) if leaf.sizes else 2
    index = rows - starts
    with np.errstate(invalid="ignore"):
        wrong = (index != np.floor(index)) | (index < 0) | (index >= counts)
    if wrong.any():
        row, element = np.argwhere(wrong)[0]
        least = leaf.starts[element] if leaf.sizes else 0
        most = least + (leaf.sizes[element] if leaf.sizes else 2) - 1
        of = "an observation" if leaf.name == WHOLE else leaf.name
        raise ValueError(f"{of} is a whole number from {least} to {most}; got {rows[row, element]}")
    if not leaf.sizes:
        target[:] = rows
        return
    offsets = np.concatenate([[0], np.cumsum(leaf.sizes)[:-1]])
    np.put_along_axis(target, index.astype(np.int64) + offsets, np.float32(1), axis=1)


def make_space(description: Mapping[str, Any]) -> Any:
    """Make the space that `rltune.envs.facts.describe_space` has described; needs gymnasium."""
    from gymnasium import spaces as kinds

    about = dict(description)
    match about.pop("type"):
        case "Discrete":
            return kinds.Discrete(about["n"], start=about["start"], **_read_dtype(about))
        case "Box":
            shape, dtype = tuple(about["shape"]), np.dtype(about["dtype"])
            low, high = (read_bound(about[key], shape, dtype) for key in ("low", "high"))
            return kinds.Box(low, high, shape, dtype.type)
        case "MultiDiscrete":
            return kinds.MultiDiscrete(np.array(about["nvec"]), start=np.array(about["start"]), **_read_dtype(about))
        case "MultiBinary":
            return kinds.MultiBinary(about["n"])
        case "Text":
            return kinds.Text(about["max"], min_length=about["min"], charset=about["characters"])
        case "Dict":
            # Gymnasium sorts the keys of a plain dict, but keeps the order in which the environment flattens its parts.
            return kinds.Dict(OrderedDict((key, make_space(part)) for key, part in about["spaces"]))
        case "Tuple":
            return kinds.Tuple([make_space(part) for part in about["spaces"]])
    raise ValueError(f"no such space: {description['type']}")


def read_bound(bound: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return a bound of a Box as an array of the space's shape and type."""
    # The greatest integers of 64 bits are no floats.
    values = np.asarray(bound if isinstance(bound, list) else [bound], dtype if dtype.kind in "iu" else np.float64)
    return (values.reshape(shape) if isinstance(bound, list) else np.full(shape, values[0])).astype(dtype)


def _read_dtype(about: Mapping[str, Any]) -> dict[str, Any]:
    return {"dtype": np.dtype(about["dtype"]).type} if "dtype" in about else {}
