"""Write a policy as one file that needs neither rltune nor RLlib: an ONNX graph or a torch.export program.

The graph takes raw observations and gives what ``env.step`` takes: the filter of observations and the scaling of
actions are inside. An ONNX graph also gives the parameters of the distribution that sampled actions come from. A file
whose outputs differ from the policy's own is not written. Runs anywhere.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rltune.config.capabilities import list_algos
from rltune.envs.actions import NUMBERS, ActionPart
from rltune.envs.layout import MASK, ONE_HOT, VECTOR, WHOLE, Leaf, join_flags, nest
from rltune.envs.spaces import list_leaves
from rltune.errors import PolicyError, choices, describe_exception
from rltune.policies.bundle_reader import BundlePolicy, GraphNetwork, open_graph
from rltune.policies.policy import MultiAgentPolicy, load_policy, require_single_agent
from rltune.policies.uri import TRUST

# The Python packages that each export format needs.
FORMATS = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "torch": ()}
SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
# An exported recurrent policy is compared on 25 episodes of 40 steps, instead of 1000 single observations.
NUM_CHECKED, NUM_EPISODES = 1000, 25
OTHERS = ("state", "actions", "next_state", "distribution")  # Names that are no leaf's.
DISTRIBUTION = "distribution"  # The name of the ONNX output with the distribution's parameters.
# The largest difference between exported and original continuous actions; discrete actions must be equal.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class ExportedPolicy:
    """A policy file that `export_policy` has written.

    Attributes:
        num_checked: Observations on which it acted as the policy does.
        difference: The greatest difference between any two actions.
    """

    path: Path
    num_checked: int
    difference: float


class Graph(nn.Module):
    """The torch graph that is exported: the leaves of observations (n, ...) in, deterministic actions (n, ...) out.

    Args:
        policy: The policy.
        with_distribution: Whether the distribution's parameters (n, outputs) are the last output (`Head.parametrize`).
    """

    def __init__(self, policy: BundlePolicy, with_distribution: bool = False) -> None:
        super().__init__()
        self.network, self.layout = policy.network, policy.layout
        self._with_distribution = with_distribution
        self.filter = _to_tensors(policy.observation_filter)
        self.actions = policy.actions.map_arrays(torch.from_numpy)

    def forward(self, *leaves: torch.Tensor) -> Any:
        """Compute deterministic actions as ``BundlePolicy.act`` does, with tensors instead of arrays."""
        count, head = len(self.layout.leaves), self.network.head
        rows = self._make_rows(leaves[:count])
        out, after = self.network.step(rows, leaves[count]) if self.network.memory_size else (self.network(rows), None)
        outputs = [*self.actions.decode_parts(head.choose_best(out)), *([] if after is None else [after])]
        if self._with_distribution:
            outputs.append(head.parametrize(out))
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def _make_rows(self, leaves: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the view of rows, with its vectors normalised."""
        parts: dict[int, torch.Tensor] = {}
        for leaf, values in zip(self.layout.leaves, leaves, strict=True):
            flat = values.reshape(values.shape[0], -1)
            if leaf.kind == MASK:
                flat = join_flags(flat != 0, leaf.sizes)
            elif leaf.sizes:
                index = flat.to(torch.int64) - torch.tensor(leaf.starts)
                flags = [nn.functional.one_hot(index[:, i], size) for i, size in enumerate(leaf.sizes)]
                flat = torch.cat(flags, dim=1)
            parts[self.layout.columns(leaf).start] = flat
        if self.layout.is_vector:  # Its numbers keep their type, in which the filter computes.
            return (self.filter.apply(parts[0]) if self.filter else parts[0]).to(torch.float32)
        rows = torch.cat([parts[begin].to(torch.float32) for begin in sorted(parts)], dim=1)
        if self.filter:
            begin, end = self.layout.vector_columns.start, self.layout.vector_columns.stop
            rows = torch.cat([rows[:, :begin], self.filter.apply(rows[:, begin:end]), rows[:, end:]], dim=1)
        return rows.to(torch.float32)


def _to_tensors(values: Any) -> Any:
    """Convert the arrays of an observation filter to tensors; None stays None."""
    arrays = {} if values is None else {k: v for k, v in values._asdict().items() if isinstance(v, np.ndarray)}
    return values and values._replace(**{name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})


def export_policy(
    policy: BundlePolicy | MultiAgentPolicy | str | Path,
    out: str | Path,
    format: str = "onnx",
    output_dir: str | Path = "outputs",
) -> ExportedPolicy:
    """Export a policy to one file, after checking on 1,000 observations that the file acts as the policy does.

    Args:
        policy: A policy, or its URI.
        out: The file; one that is there is replaced, once the new one has been checked.
        format: ``onnx``, or ``torch`` for a program of torch.export (``torch.export.load(out).module()``).
        output_dir: The folder of all sweeps.

    Raises:
        PolicyError: The format's packages are missing, the policy cannot be expressed, or the file acts differently.
    """
    _check_format(format)
    if not isinstance(out, str | Path):
        raise PolicyError("is no path", "the path of a file", f"out=policy{SUFFIXES[format]}", key="out", value=out)
    if isinstance(policy, BundlePolicy | MultiAgentPolicy):
        name = str(policy.info.get("algo", "policy"))
    else:
        name, policy = str(policy), load_policy(policy, output_dir=output_dir)
    policy = require_single_agent(policy, "an export")
    if isinstance(policy.network, GraphNetwork):
        raise PolicyError(
            f"acts by a graph of its network here, because {(policy.extractor or {}).get('class')} is somebody's code",
            "the class of its encoder, which is imported if you trust its author",
            f"{TRUST}; rltune.load_policy(uri, trust=True)",
            key="policy",
            value=name,
        )
    path = Path(out).expanduser().absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    observations = _draw_observations(policy)
    draft = path.with_name(f".{path.stem}-draft{SUFFIXES[format]}")
    try:
        step = _write(policy, observations, draft, format)
        own, exported = (_play(policy, each, observations) for each in (partial(_step, policy), step))
        num_leaves = len(policy.actions.parts)
        pairs = list(zip(own, exported, strict=False))  # A program of torch.export has no distribution.
        parts = zip(policy.actions.parts, pairs[:num_leaves], strict=True)
        difference = max(_measure_difference(*pair, format, part) for part, pair in parts)
        if not all(np.allclose(*pair, rtol=10 * TOLERANCE, atol=10 * TOLERANCE) for pair in pairs[num_leaves:]):
            raise PolicyError(
                ": the parameters of the exported distribution differ from the policy's own",
                f"a difference of at most {10 * TOLERANCE:g}",
                "nothing was written; use rltune.load_policy instead",
                key="format",
                value=format,
            )
        draft.replace(path)
    except PolicyError:
        raise
    except Exception as error:  # torch's exporters raise exceptions of any type.
        raise PolicyError(
            f"cannot be exported: {describe_exception(error)[:200]}",
            f"policies of {list_algos(lambda row: row.network)}",
            "rltune.load_policy takes every policy of a sweep",
            key="policy",
            value=name,
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    return ExportedPolicy(path, NUM_CHECKED, difference)


def _check_format(format: str) -> None:
    if format not in FORMATS:
        raise PolicyError("is unknown", choices(str(format), FORMATS), "format=onnx", key="format", value=format)
    if missing := find_missing_packages(format):
        raise PolicyError(
            f"needs {', '.join(missing)}, which is not installed",
            "the extra 'export', or format=torch",
            "pip install 'rltune[export]'",
            key="format",
            value=format,
        )


def find_missing_packages(format: str) -> list[str]:
    """Return the Python packages that an export format needs and that are not installed."""
    return [name for name in FORMATS[format] if importlib.util.find_spec(name) is None]


def write_onnx(
    graph: nn.Module, inputs: Mapping[str, torch.Tensor], outputs: Sequence[str], path: Path, about: str = ""
) -> None:
    """Write a torch graph as ONNX, for any number of rows.

    Args:
        graph: In evaluation mode.
        inputs: Two rows of each input, by its name: the exporter would take a single one for a fixed number.
        outputs: The names of the outputs.
        path: The file.
        about: What the file says about the graph, under the key ``rltune``.
    """
    with _silence_exporters():
        exported: Any = torch.onnx.export(
            _trace(graph, inputs), dynamo=True, verbose=False, input_names=list(inputs), output_names=list(outputs)
        )
        for node in exported.model.graph.all_nodes():  # Each has a stack trace, with the paths of this machine.
            node.metadata_props.clear()
        if about:
            exported.model.metadata_props["rltune"] = about
        exported.save(str(path), external_data=False)


def _trace(graph: nn.Module, inputs: Mapping[str, torch.Tensor]) -> torch.export.ExportedProgram:
    """Trace a torch graph as a program for any number of rows."""
    shapes: Any = torch.export.ShapesCollection()  # type: ignore[no-untyped-call]
    rows = torch.export.Dim("batch")
    for values in inputs.values():
        shapes[values] = {0: rows}
    return torch.export.export(graph, tuple(inputs.values()), dynamic_shapes=shapes)


BESIDE = ("", "action_mask")
"""Stands for the path of a mask that is not in the observation."""

Leaves = Mapping[tuple[Any, ...], np.ndarray]
"""The leaves of observations by their paths, each with the axis of the batch in front."""


# The type of a function that maps (observations, state) to (actions, next state, the distribution's parameters).
Step = Callable[[Leaves, Any], Any]


def _step(policy: BundlePolicy, leaves: Leaves, state: Any) -> Any:
    """Act deterministically by the policy itself, as its exported file should."""
    observations, mask = nest({path: leaf for path, leaf in leaves.items() if path != BESIDE}), leaves.get(BESIDE)
    rows, memory, _ = policy.prepare_inputs(observations, state, mask)
    out, _ = policy.network.step(torch.from_numpy(rows), torch.from_numpy(memory))
    actions, after = policy.predict(observations, state, deterministic=True, action_mask=mask)
    return actions, after, policy.network.head.parametrize(out).numpy()


def _play(policy: BundlePolicy, step: Step, observations: Leaves) -> list[np.ndarray]:
    """Act on all observations: in one batch, or for a recurrent policy as steps of parallel episodes.

    Returns:
        The parts of the actions, and the distribution's parameters if the function gives them.
    """
    num_steps = NUM_CHECKED // NUM_EPISODES if policy.memory_size else 1
    state, steps = np.zeros((NUM_EPISODES, policy.memory_size), np.float32) if policy.memory_size else None, []
    for rows in np.split(np.arange(NUM_CHECKED), num_steps):
        batch = {path: leaf[rows] for path, leaf in observations.items()}
        actions, state, *more = step(batch, state)
        steps.append((*policy.actions.unfold(actions), *more))
    return [np.concatenate(arrays) for arrays in zip(*steps, strict=True)]


def _write(policy: BundlePolicy, observations: Leaves, path: Path, format: str) -> Step:
    """Write the exported file, load it again, and return the loaded policy as a function."""
    with_distribution = format == "onnx" and policy.has_distribution
    graph = Graph(policy, with_distribution).eval()
    leaves = [torch.from_numpy(leaf[:2]) for leaf in observations.values()]
    inputs, outputs = dict(zip(name_inputs(policy.layout.leaves), leaves, strict=True)), name_outputs(policy)
    if policy.memory_size:
        inputs["state"] = torch.zeros(2, policy.memory_size)
        outputs.append("next_state")
    if with_distribution:
        outputs.append(DISTRIBUTION)
    about = json.dumps(
        {"info": policy.info, "spaces": policy.spaces, "head": policy.head, "acting": policy.acting}
        | {"sizes": policy.actions.sizes}
    )
    if format == "torch":
        with _silence_exporters():
            torch.export.save(_trace(graph, inputs), path, extra_files={"rltune.json": about})
            loaded = torch.export.load(path).module()
        return lambda leaves, state: _split(policy, loaded(*map(torch.from_numpy, _list_arrays(leaves, state))))
    write_onnx(graph, inputs, outputs, path, about)
    session = open_graph(path.read_bytes())
    return lambda leaves, state: _split(
        policy, session.run(outputs, dict(zip(inputs, _list_arrays(leaves, state), strict=True)))
    )


def _list_arrays(leaves: Leaves, state: Any) -> list[np.ndarray]:
    """List the inputs of an exported file: the leaves of observations and, of a recurrent policy, its state."""
    return [*leaves.values(), *([] if state is None else [state])]


def name_inputs(leaves: Sequence[Leaf]) -> list[str]:
    """Name the inputs of an exported file by the leaves of observations; other inputs and outputs keep their names."""
    return [f"{WHOLE}.{leaf.name}" if leaf.name in OTHERS else leaf.name for leaf in leaves]


def _split(policy: BundlePolicy, out: Any) -> tuple[Any, ...]:
    """Return the outputs of an exported file as arrays, with None in place of the state of a policy without memory."""
    arrays = [np.asarray(x) for x in (out if isinstance(out, list | tuple) else [out])]
    num_leaves = len(policy.actions.parts)
    actions, more = policy.actions.fold(arrays[:num_leaves]), arrays[num_leaves:]
    return (actions, *more) if policy.memory_size else (actions, None, *more)


def name_outputs(policy: BundlePolicy) -> list[str]:
    """Name the outputs of an exported file that are actions: ``actions``, or ``actions.arm.0`` for a part of them."""
    return [f"actions.{part.name}" if part.path else "actions" for part in policy.actions.parts]


@contextlib.contextmanager
def _silence_exporters() -> Any:
    """Silence progress output and deprecation warnings of the exporters, which the user can do nothing about."""
    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    for name in ("torch.onnx", "torch.fx.experimental.symbolic_shapes"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _draw_observations(policy: BundlePolicy) -> Leaves:
    """Draw 1,000 observations: around the training's observation statistics if it kept any, else within the bounds."""
    rng = np.random.default_rng(0)
    spaces = dict(list_leaves(policy.observation_space))
    drawn = {}
    for leaf in policy.layout.leaves:
        if leaf.kind == MASK:
            drawn[leaf.path or BESIDE] = _draw_flags(leaf.sizes or policy.actions.sizes, rng)
        else:
            drawn[leaf.path] = _draw_leaf(policy, leaf, spaces[leaf.path], rng)
    return drawn


def _draw_flags(sizes: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Draw masks in which each choice has a legal value."""
    parts = [rng.random((NUM_CHECKED, size)) < 0.5 for size in sizes]
    for part in parts:
        part[np.arange(NUM_CHECKED), rng.integers(part.shape[1], size=NUM_CHECKED)] = True
    return np.concatenate(parts, axis=1).astype(np.int8)


def _draw_leaf(policy: BundlePolicy, leaf: Leaf, space: Any, rng: np.random.Generator) -> np.ndarray:
    shape, dtype = (NUM_CHECKED, *leaf.shape), np.dtype(leaf.dtype)
    if leaf.kind == ONE_HOT:
        starts, sizes = (
            np.reshape(each, leaf.shape) if leaf.sizes else np.array(flag)
            for each, flag in ((leaf.starts, 0), (leaf.sizes, 2))
        )
        return np.asarray(starts + rng.integers(np.broadcast_to(sizes, shape)), dtype=dtype)
    spread = rng.standard_normal(shape)
    # Whole numbers are drawn from their range.
    if (filtered := policy.observation_filter) and leaf.kind == VECTOR and np.issubdtype(dtype, np.floating):
        columns = slice(leaf.begin, leaf.begin + leaf.size)
        mean, scale = (each[columns].reshape(leaf.shape) for each in (filtered.mean, filtered.scale))
        return np.asarray(mean + 1.5 * scale * spread, dtype=dtype)
    if not hasattr(space, "low"):  # A choice whose number is taken as it is.
        return np.asarray([space.sample() for _ in range(NUM_CHECKED)], dtype=dtype).reshape(shape)
    low, high = (np.asarray(bound, dtype=np.float64) for bound in (space.low, space.high))
    small = np.isfinite(low) & np.isfinite(high) & (high - low < 1e4)
    even = np.where(small, low, 0) + rng.random(shape) * np.where(small, high - low, 0)
    return np.asarray(np.where(small, even, 2 * spread), dtype=dtype)


def _measure_difference(expected: np.ndarray, exported: np.ndarray, format: str, part: ActionPart) -> float:
    """Compare the exported policy's actions with the original's, and return the largest difference.

    Args:
        expected: A part of the original's actions.
        exported: The same of the exported policy's.
        format: The format, for the error.
        part: What it is. A number is compared in the unit of the network's outputs, which is half of the range to which
            they are scaled. If it is rounded to whole numbers, the next one may be the nearest by chance.

    Raises:
        PolicyError: It is too great.
    """
    same_form = expected.shape == exported.shape
    difference = np.abs(expected.astype(np.float64) - exported.astype(np.float64)) if same_form else np.array(np.inf)
    is_float = expected.dtype.kind == "f"
    allowed = max(TOLERANCE, float(np.finfo(expected.dtype).eps)) if is_float else TOLERANCE
    limit: Any = 0.0
    if part.kind == NUMBERS:
        unit = 1.0 if part.half is None else np.maximum(1.0, part.half).reshape(part.shape)
        limit = allowed * (np.abs(expected.astype(np.float64)) + unit) + (1.0 if part.is_rounded else 0.0)
    gap = float(difference.max(initial=0.0))
    if not (difference <= limit).all():
        raise PolicyError(
            f": the exported policy's actions differ from the policy's own by up to {gap:.3g}",
            f"a difference of at most {allowed:g}" if is_float else "equal actions",
            "nothing was written; use rltune.load_policy instead",
            key="format",
            value=format,
        )
    return gap


def default_export_name(policy: BundlePolicy | MultiAgentPolicy, format: str) -> str:
    """Return the default file name of an export, such as ``cartpole-v1-ppo.onnx``."""
    # Before a colon, scp would expect the name of a machine.
    env = re.split("[/:]", str((policy.info.get("env") or {}).get("id", "policy")))[-1]
    return f"{env}-{policy.info.get('algo', 'policy')}{SUFFIXES[format]}".lower()
