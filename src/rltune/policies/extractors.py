"""Make the user's own feature extractors, which encode observations with the signature of Stable-Baselines3's.

An extractor is a ``torch.nn.Module``, made as ``Extractor(observation_space, **kwargs)``. It has ``features_dim``, and
``forward`` takes a batch in the environment's own structure: a tensor, or a dict or tuple of tensors. As in
Stable-Baselines3 it sees images with their channels first and values from 0 to 1, and choices as one-hot flags; a mask
of legal actions is left out. Files name the class and its arguments, and nothing is pickled.

`check_extractor` runs in a process of its own before a sweep (`examine_extractors`), the rest in trials and wherever a
policy is played whose author is trusted.
"""

from __future__ import annotations

import copy
import inspect
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rltune.envs.child import acquire_child
from rltune.envs.facts import describe_space, make_space
from rltune.envs.guest import call_guest, import_guest
from rltune.envs.layout import IMAGE, LAST, MASK, NONE, ONE_HOT, VECTOR, Layout, Leaf, nest
from rltune.envs.observations import list_leaves
from rltune.errors import ConfigError, GuestError, PolicyError, describe_exception, nearest
from rltune.policies.bundle_reader import GRAPH_FILE, open_graph

KEY, KWARGS_KEY = "algo.rl_module.encoder", "algo.rl_module.encoder_kwargs"
USAGE = "module:Class of a torch.nn.Module with the signature of Stable-Baselines3's BaseFeaturesExtractor"
NUM_ROWS, MAX_NUMBERS = 1000, 2 * 10**7
"""The rows of the largest batch on which an exported graph is compared, and the most numbers that it has."""
MAX_DRAWN = 1e4
# A row by itself and in a batch differ by rounding alone.
TOLERANCE = {"rtol": 1e-3, "atol": 1e-4}


class ExtractorSpec(NamedTuple):
    """The class of an extractor and its arguments, as settings and policies name them.

    Attributes:
        target: ``module:Class``.
        kwargs: The keyword arguments behind the observation space, such as JSON has.
    """

    target: str
    kwargs: Mapping[str, Any]

    @classmethod
    def from_dict(cls, description: Any) -> Self:
        """Read what `to_dict` returned.

        Raises:
            ValueError: It names no class.
        """
        if not isinstance(description, Mapping) or not isinstance(description.get("kwargs"), Mapping):
            raise ValueError("the policy's files name no class of its encoder")
        return cls(str(description["class"]), description["kwargs"])

    def to_dict(self) -> dict[str, Any]:
        """Return the specification as JSON values."""
        return {"class": self.target, "kwargs": dict(self.kwargs)}

    @property
    def module(self) -> str:
        """The module that has the class."""
        return self.target.partition(":")[0]


# -- Observations in the environment's own structure -------------------------------------------------------------------


def split_rows(layout: Layout, rows: Tensor) -> Any:
    """Return observations in the environment's own structure, as an extractor takes them.

    Args:
        layout: Which columns are which part of an observation.
        rows: Rows of bytes [rows, width], or the views of rows as vectors [rows, columns]; see `Layout`.
    """
    return nest({leaf.path: _restore(leaf, _read_columns(layout, rows, leaf)) for leaf in _list_seen(layout)})


def _read_columns(layout: Layout, rows: Tensor, leaf: Leaf) -> Tensor:
    """Return the columns [rows, size] of a leaf as float32."""
    if rows.dtype != torch.uint8:
        return rows[:, layout.columns(leaf)]
    if leaf.is_bytes:
        return rows[:, leaf.begin : leaf.begin + leaf.size].to(torch.float32)
    numbers = rows[:, layout.numbers_begin :].contiguous().view(torch.float32)
    return numbers[:, leaf.begin : leaf.begin + leaf.size]


def present_space(space: spaces.Space[Any], layout: Layout) -> spaces.Space[Any]:
    """Return an environment's observation space as an extractor is made with it, which fits what `split_rows` gives."""
    parts = dict(list_leaves(space))
    return _make_space(nest({leaf.path: _present(leaf, parts[leaf.path]) for leaf in _list_seen(layout)}))


def _list_seen(layout: Layout) -> Iterator[Leaf]:
    return (leaf for leaf in layout.leaves if leaf.kind != MASK)


def _make_space(parts: Any) -> spaces.Space[Any]:
    """Make a space of dicts and tuples of spaces."""
    if isinstance(parts, dict):
        return spaces.Dict(OrderedDict((key, _make_space(part)) for key, part in parts.items()))
    return spaces.Tuple(map(_make_space, parts)) if isinstance(parts, tuple) else parts


def _restore(leaf: Leaf, columns: Tensor) -> Tensor:
    """Return the values [rows, ...] of a leaf from its columns [rows, size]."""
    if leaf.sizes:
        return columns
    part = columns.reshape(-1, *(leaf.shape or (1,)))
    if leaf.kind != IMAGE:
        return part
    part = part / leaf.scale
    if leaf.channels == NONE:
        return part.unsqueeze(1)
    first = part.movedim(-1, -3) if leaf.channels == LAST else part
    return first.flatten(1, 2) if leaf.num_frames > 1 else first


def _present(leaf: Leaf, space: Any) -> Any:
    """Return the space of a leaf as Stable-Baselines3 would show it to an extractor."""
    if leaf.kind == IMAGE and leaf.channels == NONE:
        return spaces.Box(space.low[None], space.high[None], dtype=space.dtype)
    if leaf.kind == IMAGE:
        last, (height, width, channels) = leaf.channels == LAST, leaf.image_shape
        bounds = (np.moveaxis(bound, -1, -3) if last else bound for bound in (space.low, space.high))
        low, high = (bound.reshape(channels, height, width) for bound in bounds)
        return spaces.Box(low, high, dtype=space.dtype)
    if leaf.kind == ONE_HOT and isinstance(space, spaces.Box):
        return spaces.MultiDiscrete(list(leaf.sizes), start=list(leaf.starts))
    if leaf.kind == VECTOR and not isinstance(space, spaces.Box):  # Choices whose numbers are taken as they are.
        return spaces.Box(-np.inf, np.inf, leaf.shape or (1,), np.float32)
    if isinstance(space, spaces.Box) and not leaf.shape:
        return spaces.Box(space.low[None], space.high[None], dtype=space.dtype)
    return space


class FeatureExtractor(nn.Module):
    """An extractor that takes the views of rows [rows, columns] and returns features [rows, features].

    Args:
        spec: The class and its arguments.
        space: The environment's own observation space.
        layout: Which columns of a row are which part of an observation.

    Attributes:
        module: The extractor itself.
        num_features: The size of its output.
    """

    def __init__(self, spec: ExtractorSpec, space: spaces.Space[Any], layout: Layout) -> None:
        super().__init__()
        self._layout = layout
        self.module = _make_module(spec, present_space(space, layout))
        self.num_features = _read_size(spec, self.module)
        if any(map(nn.parameter.is_lazy, self.module.parameters())):  # The first batch gives them their sizes.
            with torch.no_grad(), call_guest(f"forward of {spec.target}"):
                self.module.eval()(split_rows(layout, torch.zeros(2, layout.num_columns)))

    def forward(self, rows: Tensor) -> Tensor:
        """Compute the features of a batch."""
        features: Tensor = self.module(split_rows(self._layout, rows))
        return features


def import_extractor(target: str) -> type[nn.Module]:
    """Import the class of an extractor.

    Raises:
        ConfigError: There is no such class, or it is no torch.nn.Module.
        GuestError: Its module cannot be imported.
    """
    module, _, name = target.partition(":")
    known = vars(import_guest(module))
    if not (isinstance(known.get(name), type) and issubclass(known[name], nn.Module)):
        others = [each for each, value in known.items() if isinstance(value, type) and issubclass(value, nn.Module)]
        close = nearest(name, others) or next(iter(others), "MyExtractor")
        problem = "is no torch.nn.Module" if name in known else f": {module} has no {name}"
        raise ConfigError(KEY, target, problem, USAGE, f"{KEY}={module}:{close}")
    cls: type[nn.Module] = known[name]
    return cls


def _make_module(spec: ExtractorSpec, space: spaces.Space[Any]) -> nn.Module:
    """Make an extractor.

    Raises:
        ConfigError: It does not take the arguments.
        GuestError: Its constructor fails otherwise.
    """
    cls = import_extractor(spec.target)
    try:
        signature = inspect.signature(cls)
        signature.bind(space, **spec.kwargs)
    except TypeError as error:
        parameters = list(signature.parameters)[1:]
        unknown = next((name for name in spec.kwargs if name not in parameters), None)
        key = f"{KWARGS_KEY}.{unknown}" if unknown else KWARGS_KEY
        close = unknown and nearest(unknown, parameters)
        fix = f"~{key}" if unknown else f"++{KWARGS_KEY}.<name>=<value>"
        if unknown and close:
            fix = f"++{KWARGS_KEY}.{close}={spec.kwargs[unknown]} {fix}"
        value = spec.kwargs[unknown] if unknown else dict(spec.kwargs)
        allowed = f"the arguments of {spec.target}: {signature}"
        raise ConfigError(key, value, f": {spec.target} does not take it: {error}", allowed, fix) from None
    except ValueError:  # A class whose signature nothing can read.
        pass
    with call_guest(f"make of {spec.target}"):
        module = cls(space, **spec.kwargs)
    return module


def _read_size(spec: ExtractorSpec, module: nn.Module) -> int:
    size = getattr(module, "features_dim", None)
    if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 1:
        problem = "has no features_dim" if size is None else f"has features_dim={size!r}"
        fix = f"self.features_dim = ... in the constructor of {spec.target}"
        raise ConfigError(KEY, spec.target, problem, "features_dim, the number of features, at least 1", fix)
    return int(size)


# -- The check before a sweep ------------------------------------------------------------------------------------------


def examine_extractors(
    specs: Sequence[ExtractorSpec], space: spaces.Space[Any], layout: Layout, stall_s: float
) -> list[str]:
    """Check extractors by `check_extractor` in a process of its own, which has ended then.

    Args:
        specs: Their classes and arguments.
        space: The environment's observation space.
        layout: The layout of its observations.
        stall_s: How long a call into them may take, in seconds.

    Returns:
        Notes on what they cannot do.

    Raises:
        RltuneError: One of them cannot be made or trained.
    """
    extractors = [spec.to_dict() for spec in specs]
    arguments = {"extractors": extractors, "space": describe_space(space), "layout": layout.to_dict()}
    try:
        return list(acquire_child().call(f"{__name__}:describe_extractors", arguments, limit_s=stall_s))
    except GuestError as fault:
        words = fault.call.split()
        failed = (spec for spec in specs if spec.target in words or spec.module in words)
        value = next(failed, specs[0]).target
        fix = "put the folder of its module on PYTHONPATH" if fault.call.startswith("import of") else None
        raise fault.rewrite(f": {fault.problem}", USAGE, fix, key=KEY, value=value) from None


def describe_extractors(
    extractors: Sequence[Mapping[str, Any]], space: Mapping[str, Any], layout: Mapping[str, Any]
) -> list[str]:
    """Check extractors by `check_extractor`, each class with one export; arguments and answer are such as JSON has.

    Returns:
        The notes on them.
    """
    warnings.simplefilter("ignore")  # What the process prints becomes part of an error.
    notes: list[str] = []
    exported: set[str] = set()
    for description in extractors:
        spec = ExtractorSpec.from_dict(description)
        notes += check_extractor(spec, make_space(space), Layout.from_dict(layout), export=spec.target not in exported)
        exported.add(spec.target)
    return notes


def check_extractor(spec: ExtractorSpec, space: spaces.Space[Any], layout: Layout, *, export: bool = True) -> list[str]:
    """Refuse an extractor that cannot be trained, saved or loaded, and export it once while it is untrained.

    What it returns must follow from its arguments, its state dict and each row alone: sampling, learning and playing
    have copies of it, which see batches of different sizes, and a file keeps nothing else of it.

    Returns:
        A note if ONNX cannot express it.

    Raises:
        ConfigError: Names what is wrong with it.
        GuestError: It raises an exception.
    """
    encoder, twin = FeatureExtractor(spec, space, layout).eval(), FeatureExtractor(spec, space, layout).eval()
    _check_parameters(spec, encoder.module)
    rows = torch.from_numpy(draw_views(space, layout, 3))
    untouched = rows.clone()

    def compute(module: nn.Module, batch: Tensor) -> Tensor:
        with torch.no_grad(), call_guest(f"forward of {spec.target}"):
            out: Tensor = module(batch)
        return out

    features = compute(encoder, rows)
    wanted = (len(rows), encoder.num_features)
    if not isinstance(features, Tensor) or tuple(features.shape) != wanted or features.dtype != torch.float32:
        given = f"{features.dtype} of shape {tuple(features.shape)}" if isinstance(features, Tensor) else repr(features)
        problem = f"returns {given[:120]} for {len(rows)} observations"
        allowed = f"float32 of shape {wanted}: (batch, features_dim)"
        raise ConfigError(KEY, spec.target, problem, allowed, "correct its forward or its features_dim")

    def require_same(out: Tensor, expected: Tensor, problem: str, fix: str) -> None:
        if not torch.allclose(out, expected, equal_nan=True, **TOLERANCE):
            raise ConfigError(KEY, spec.target, problem, "what follows from each observation and its weights", fix)

    if not torch.equal(rows, untouched):
        problem, own = "changes the observations that it is given", "x = x.clone() before what changes x"
        raise ConfigError(KEY, spec.target, problem, "features of observations that stay as they are", own)
    require_same(compute(encoder, rows), features, "returns other features for equal observations", "keep no state")
    alone = "normalise by nn.LayerNorm, and leave other rows of the batch alone"
    require_same(compute(encoder, rows[:1]), features[:1], "mixes the observations of a batch", alone)
    _train_once(spec, encoder, rows)
    again = compute(encoder.eval(), rows)
    stateful = "changes by being called, without a gradient step"
    require_same(again, features, stateful, "keep nothing from one call for the next")
    _load_state(spec, twin.module, encoder.module)
    problem = "keeps numbers outside of its state dict, so that a loaded policy would act differently"
    fix = "self.register_buffer(...) for a tensor of random numbers, nn.ModuleList(...) for a list of layers"
    require_same(compute(twin, rows), features, problem, fix)
    return _export_once(spec, encoder, space, layout) if export else []


def _check_parameters(spec: ExtractorSpec, module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm):
            name = type(part).__name__
            problem = f"has a {name}, which acts differently in sampling and in learning"
            raise ConfigError(KEY, spec.target, problem, "layers that see each observation alone", "nn.LayerNorm")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.is_complex() or (tensor.is_floating_point() and tensor.dtype != torch.float32):
            problem = f"has {name} of {tensor.dtype}"
            raise ConfigError(KEY, spec.target, problem, "parameters and buffers of float32", f"{name}.float()")


def _train_once(spec: ExtractorSpec, encoder: FeatureExtractor, rows: Tensor) -> None:
    """Compute gradients as learning does, with other weights, and refuse an extractor whose buffers change meanwhile.

    Raises:
        ConfigError: Names the buffer and its layer.
        GuestError: The extractor raises an exception.
    """
    before = {name: buffer.clone() for name, buffer in encoder.module.named_buffers()}
    weights = {name: parameter.detach().clone() for name, parameter in encoder.module.named_parameters()}
    with torch.no_grad():
        for parameter in encoder.module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    with torch.enable_grad(), call_guest(f"training of {spec.target}"):
        features = encoder.train()(rows)
        if features.requires_grad:
            features.sum().backward()
        encoder.zero_grad(set_to_none=True)
        copy.deepcopy(encoder)  # As RLlib makes target networks.
    with torch.no_grad():
        for name, parameter in encoder.module.named_parameters():
            parameter.copy_(weights[name])
    for name, buffer in encoder.module.named_buffers():
        if name not in before or not torch.equal(buffer, before[name]):
            layer = type(encoder.module.get_submodule(name.rpartition(".")[0])).__name__
            problem = f"changes its buffer {name} ({layer}) when it is trained, which copies that sample do not see"
            raise ConfigError(KEY, spec.target, problem, "buffers that stay as they are", "leave this layer out")


def _load_state(spec: ExtractorSpec, target: nn.Module, source: nn.Module) -> None:
    state = source.state_dict()
    if other := next((name for name, value in state.items() if not isinstance(value, Tensor)), None):
        problem = f"has {other} in its state dict, which is no tensor"
        raise ConfigError(KEY, spec.target, problem, "parameters and buffers alone", "self.register_buffer(...)")
    try:
        target.load_state_dict(state)
    except Exception as error:  # A state dict may be made by code of the user's.
        problem = f"cannot load its own state dict: {describe_exception(error)}"
        allowed = "equal layers for equal arguments"
        raise ConfigError(KEY, spec.target, problem, allowed, "make the same layers in each constructor") from None


def draw_views(space: spaces.Space[Any], layout: Layout, count: int) -> Any:
    """Draw observations from a space, and return their rows as vectors [count, columns]; see `Layout.view`."""
    space.seed(0)
    observations = layout.stack([space.sample() for _ in range(count)])
    masks = np.ones((count, layout.mask.size), np.int8) if layout.mask else None
    views = np.array(layout.view(layout.encode_batch(observations, masks)[0]), np.float32)
    # Spaces without an end hold numbers that no environment gives, on which networks overflow.
    noise = 2.0 * np.random.default_rng(0).standard_normal(views.shape, np.float32)
    return np.where(np.abs(views) < MAX_DRAWN, views, noise)


def _draw_many(space: spaces.Space[Any], layout: Layout) -> Tensor:
    return torch.from_numpy(draw_views(space, layout, max(2, min(NUM_ROWS, MAX_NUMBERS // layout.num_columns))))


def _export_once(spec: ExtractorSpec, encoder: FeatureExtractor, space: spaces.Space[Any], layout: Layout) -> list[str]:
    """Export an untrained extractor to ONNX, compare it on 1, 2 and many rows, and return a note if that fails."""
    from rltune.policies.export import find_missing_packages, write_onnx

    loss = (
        f"its policies then act only where {spec.module} can be imported and, if somebody else trained them, with "
        "trust=true"
    )
    if missing := find_missing_packages("onnx"):
        return [f"{KEY}={spec.target} is not exported to ONNX without {', '.join(missing)} (rltune[export]): {loss}"]
    rows = _draw_many(space, layout)
    try:
        with tempfile.TemporaryDirectory() as folder, torch.no_grad(), call_guest(f"export of {spec.target} to ONNX"):
            path = Path(folder) / "extractor.onnx"
            write_onnx(encoder, {"rows": rows[:2]}, ["features"], path)
            _compare(encoder, path, {"rows": rows})
    except GuestError as fault:
        cause = fault.__cause__
        why = describe_exception(cause)[:200] if isinstance(cause, Exception) else fault.problem
        return [f"ONNX cannot express {KEY}={spec.target} ({why}): {loss}"]
    return []


# -- The graph of a registered policy ----------------------------------------------------------------------------------


class _StepGraph(nn.Module):
    """A network's step as a graph, of whose memory a policy without one has no input."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, rows: Tensor, memory: Tensor | None = None) -> Any:
        """Compute the outputs of a batch and, with a memory, the next one."""
        return self.network(rows) if memory is None else self.network.step(rows, memory)


def write_graph(folder: str, progress: Any = None) -> bool:
    """Write the network of a bundle with an extractor as an ONNX graph beside it, in a process of its own.

    The graph was compared on 1, 2 and many rows, so that the policy acts alike where nobody has the extractor's code.

    Args:
        folder: The bundle, of the user's own sweep.
        progress: Not called.

    Returns:
        True.

    Raises:
        PolicyError: ONNX cannot express the network.
    """
    from rltune.policies.export import write_onnx
    from rltune.policies.policy import load_policy

    policy: Any = load_policy(folder, trust=True)
    graph, space = _StepGraph(policy.network).eval(), policy.observation_space
    layout, draft = policy.layout, Path(folder) / f".{GRAPH_FILE}"
    rows = _draw_many(space, layout)
    memory = {"memory": torch.randn(len(rows), policy.memory_size)} if policy.memory_size else {}
    inputs, outputs = {"rows": rows, **memory}, ["outputs", *(["next_memory"] if memory else [])]
    try:
        with torch.no_grad():
            write_onnx(graph, {name: values[:2] for name, values in inputs.items()}, outputs, draft)
            _compare(graph, draft, inputs)
    except Exception as error:  # torch's exporters raise exceptions of any type.
        draft.unlink(missing_ok=True)
        allowed, fix = (
            "a network that ONNX can express",
            "rltune.load_policy(uri, trust=True) takes it where its class is",
        )
        raise PolicyError(f"ONNX cannot express its network: {describe_exception(error)[:200]}", allowed, fix) from None
    draft.rename(draft.with_name(GRAPH_FILE))
    return True


def _compare(module: nn.Module, path: Path, inputs: Mapping[str, Tensor]) -> None:
    """Compare a graph with its torch module on 1, 2 and all of the given rows.

    Raises:
        ValueError: They differ.
    """
    graph = open_graph(path.read_bytes())
    for count in (1, 2, len(next(iter(inputs.values())))):
        batch = {name: values[:count] for name, values in inputs.items()}
        expected = module(*batch.values())
        given = graph.run(None, {name: values.numpy() for name, values in batch.items()})
        for out, wanted in zip(given, expected if isinstance(expected, tuple) else (expected,), strict=True):
            if not np.allclose(out, wanted.numpy(), equal_nan=True, **TOLERANCE):
                raise ValueError(f"for {count} observations the graph gives other numbers")
