"""Read a policy bundle (network and weights in files without pickle), rebuild the network, and act with it.

This file imports only the standard library, NumPy and torch, and what travels with it inside registered MLflow models,
where neither rltune nor ray is installed (``served_model`` loads it there). Nothing in a bundle is pickled, so
that reading one runs no code of its author's. Only the heads' ``describe``, which ``bundle_writer`` calls, sees RLlib.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import nn

if __package__ == "rltune.policies":
    from rltune.envs.actions import ActionParts, list_children
    from rltune.envs.layout import ILLEGAL, Layout, make_space, read_bound
else:  # In a model the other files lie beside this one, and are not registered in ``sys.modules``, as this one is not.

    def _load_beside(name: str) -> Any:
        folder = Path(__file__).resolve().parent
        path = next(p for p in (folder / name, folder.parent / "envs" / name) if p.is_file())
        spec: Any = importlib.util.spec_from_file_location(f"rltune_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    _actions, _layout = map(_load_beside, ("actions.py", "layout.py"))
    ActionParts, list_children = _actions.ActionParts, _actions.list_children  # type: ignore[misc]
    ILLEGAL, Layout, make_space, read_bound = (  # type: ignore[misc]
        getattr(_layout, name) for name in ("ILLEGAL", "Layout", "make_space", "read_bound")
    )

FORMAT = 1  # The current version of the bundle's format; all versions from 1 on can be read.
# The folder with one bundle per policy of a multi-agent checkpoint; a policy.json about all of them lies beside it.
POLICIES = "policies"
GRAPH_FILE = "network.onnx"
"""The file of a bundle with its network as a graph, where a part of the network is code of somebody's."""
# The constructor arguments that are saved for each type of torch layer. To support another layer type, add it here.
LAYERS: dict[str, tuple[str, ...]] = {
    "Linear": ("in_features", "out_features"),
    "LayerNorm": ("normalized_shape", "eps"),
    "ReLU": (),
    "Tanh": (),
    "SiLU": (),
    "Sigmoid": (),
    "SELU": (),
    "Mish": (),
    "Identity": (),
    "Softsign": (),
    "ELU": ("alpha",),
    "GELU": ("approximate",),
    "LeakyReLU": ("negative_slope",),
    "Softplus": ("beta", "threshold"),
    "Flatten": ("start_dim", "end_dim"),
    "Unflatten": ("dim", "unflattened_size"),
    "Conv2d": ("in_channels", "out_channels", "kernel_size", "stride"),
    "ZeroPad2d": ("padding",),
    "Permute": ("dims",),
    "LSTMCell": ("input_size", "hidden_size"),
}
BEYOND = 4.0
"""How many widths of its range an observation may lie outside: LunarLander-v3 itself leaves its bounds by two."""
# The most numbers of one observation or action, since more would fill the memory; an image of 4k has a quarter of it.
MAX_NUMBERS = 10**8
MAX_DEPTH = 40  # How deep the lists and objects of policy.json may be nested.
# Characters that move a terminal's cursor, set its title, or write backwards, and halves of characters.
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
WEIGHTED = ("Linear", "LayerNorm", "Conv2d", "LSTMCell")
# The same code serves policies, which pass arrays, and exported graphs, which pass tensors.
Values = TypeVar("Values", np.ndarray, torch.Tensor)
# What draws sampled actions, see `BundlePolicy.act`.
Rng: TypeAlias = np.random.Generator | Sequence[np.random.Generator] | int | None


class Permute(nn.Module):
    """Permute a tensor's axes, because images have their channels last in RLlib and first in torch."""

    def __init__(self, dims: list[int]) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Permute the axes of a batch of images."""
        return x.permute(*self.dims)


class Head:
    """A kind of network output, such as a Gaussian's parameters: how to compute it, and to choose an action from it.

    Each kind of head is a class in `HEADS`. Policies, bundles, exported graphs and the engine's env runners use it
    alike. To add a kind, derive a class, list it in `HEADS`, and name its ``kind`` in a row of
    `rltune.config.capabilities`.

    Attributes:
        kind: The name in ``policy.json``.
        is_discrete: Whether it chooses among the values of a Discrete space.
        is_distribution: Whether training samples actions from what it gives. A value-based policy has no distribution.
        settings: The entry in ``policy.json``, as `describe` returned it.
    """

    kind: ClassVar[str]
    is_discrete: ClassVar[bool] = False
    is_distribution: ClassVar[bool] = True

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    @classmethod
    def describe(cls, module: Any = None, layers: Any = None) -> dict[str, Any]:
        """Describe the output layers of an RLlib module as the entry "head" of ``policy.json``.

        Args:
            module: The RLModule; its classes are not imported. None describes RLlib's default.
            layers: The part of the module with the head's layers.
        """
        return {"kind": cls.kind}

    def compute_output(self, network: Network, hidden: torch.Tensor) -> torch.Tensor:
        """Compute the outputs (batch, outputs), such as logits, from the encoder's features (batch, features)."""
        out: torch.Tensor = network.parts["head"](hidden)
        return out

    def count_outputs(self, size: int) -> int:
        """Count the network's outputs for one action, such as a mean and a log standard deviation per dimension.

        Args:
            size: The number of discrete actions, or the size of a continuous one.
        """
        return size

    def choose_best(self, out: Values) -> Values:
        """Choose the deterministic action before it is scaled: (batch,) if discrete, else (batch, action size)."""
        raise NotImplementedError

    def parametrize(self, out: torch.Tensor) -> torch.Tensor:
        """Return the parameters of the distribution of actions, (batch, outputs), from which `draw` samples."""
        return out

    def draw(self, out: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Sample an action before scaling; it has the shape that `choose_best` returns.

        Args:
            out: The network's output (batch, outputs).
            noise: Gumbel noise (batch, outputs) if the choice is discrete, else normal noise (batch, action size).
        """
        raise NotImplementedError

    def sample(self, out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Sample an action as `draw` does, with noise that is drawn from the generator."""
        if self.is_discrete:
            return self.draw(out, rng.gumbel(size=out.shape))
        return self.draw(out, rng.standard_normal(self.choose_best(out).shape, dtype=np.float32))


class CategoricalHead(Head):
    """The outputs are the logits (batch, actions) of a categorical distribution."""

    kind = "categorical"
    is_discrete = True

    def choose_best(self, out: Values) -> Values:
        """Choose the action with the largest logit."""
        best: Values = out.argmax(-1)
        return best

    def draw(self, out: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Draw from the softmax of the logits by the Gumbel-max trick (Gumbel 1954; Maddison et al. 2014)."""
        drawn: np.ndarray = (out + noise).argmax(-1)
        return drawn


class QHead(CategoricalHead):
    """Q values (batch, actions), as in RLlib's DQN (dueling: Wang et al. 2016; C51: Bellemare et al. 2017)."""

    kind = "q"
    is_distribution = False

    @classmethod
    def describe(cls, module: Any = None, layers: Any = None) -> dict[str, Any]:
        """Describe DQN's output for ``policy.json``: dueling or not, number of C51 atoms, last epsilon."""
        epsilon = module.model_config["epsilon"]
        while isinstance(epsilon, list | tuple):
            epsilon = epsilon[-1]
        atoms = int(module.num_atoms)
        head = {"kind": cls.kind, "dueling": bool(module.uses_dueling), "atoms": atoms, "epsilon": epsilon}
        return head | ({"v_min": float(module.v_min), "v_max": float(module.v_max)} if atoms > 1 else {})

    def compute_output(self, network: Network, hidden: torch.Tensor) -> torch.Tensor:
        """Compute Q values from advantages, state value and, with C51, the distribution's atoms."""
        out, atoms = super().compute_output(network, hidden), self.settings["atoms"]
        if atoms > 1:
            out = out.view(out.shape[0], -1, atoms)
        if self.settings["dueling"]:
            value: torch.Tensor = network.parts["value"](hidden)
            # With C51, RLlib (2.60) takes the advantages' mean over the atoms, not over the actions as in the paper.
            out = out - out.mean(dim=-1, keepdim=True) + value.view(-1, *(1,) * (out.dim() - 1))
        if atoms == 1:
            return out
        low, high = self.settings["v_min"], self.settings["v_max"]
        support = low + torch.arange(0.0, atoms, dtype=torch.float32) * (high - low) / float(atoms - 1)
        return torch.sum(support * torch.softmax(out, dim=-1), dim=-1)

    def sample(self, out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Act epsilon-greedily on the Q values, with the last epsilon of the training."""
        explore, is_legal = rng.random(len(out)) < self.settings.get("epsilon", 0.0), out != ILLEGAL
        if is_legal.all():
            drawn = rng.integers(out.shape[-1], size=len(out))
        else:  # The number of a legal action becomes that of an action.
            drawn = (is_legal.cumsum(-1) > rng.integers(is_legal.sum(-1))[:, None]).argmax(-1)
        return np.where(explore, drawn, out.argmax(-1))


class GaussianHead(Head):
    """The outputs are the mean and log standard deviation (batch, 2 x action size) of a Gaussian."""

    kind = "gaussian"

    @classmethod
    def describe(cls, module: Any = None, layers: Any = None) -> dict[str, Any]:
        """Describe the Gaussian for ``policy.json``: the bounds to which log standard deviations are clipped."""
        limit = float(layers.log_std_clip_param_const) if getattr(layers, "clip_log_std", False) else None
        return {"kind": cls.kind, "log_std_bounds": None if limit is None else (-limit, limit)}

    def compute_output(self, network: Network, hidden: torch.Tensor) -> torch.Tensor:
        """Concatenate mean and log standard deviation; the latter may be a free parameter that is no layer's output."""
        out = super().compute_output(network, hidden)
        return torch.cat((out, network.log_std.expand_as(out)), dim=-1) if hasattr(network, "log_std") else out

    def count_outputs(self, size: int) -> int:
        """Count two outputs per action dimension: the mean and the log standard deviation."""
        return 2 * size

    def choose_best(self, out: Values) -> Values:
        """Choose the mean of the Gaussian."""
        return out[:, : out.shape[1] // 2]

    def parametrize(self, out: torch.Tensor) -> torch.Tensor:
        """Return the mean and the clipped log standard deviation of the Gaussian."""
        if bounds := self.settings["log_std_bounds"]:
            mean, log_std = out.chunk(2, dim=-1)
            return torch.cat((mean, log_std.clamp(*bounds)), dim=-1)
        return out

    def draw(self, out: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Sample from the Gaussian, after clipping its log standard deviation."""
        size = out.shape[1] // 2
        log_std = out[:, size:]
        if bounds := self.settings["log_std_bounds"]:
            log_std = np.minimum(np.maximum(log_std, bounds[0]), bounds[1])  # For few rows, np.clip is slower.
        drawn: np.ndarray = np.exp(log_std)  # np.exp returns a new array, which the next lines change in place.
        drawn *= noise
        drawn += out[:, :size]
        return drawn


class SquashedGaussianHead(GaussianHead):
    """A Gaussian whose samples are squashed by tanh, as in SAC."""

    kind = "squashed_gaussian"

    @classmethod
    def describe(cls, module: Any = None, layers: Any = None) -> dict[str, Any]:
        """Describe the bounds of log standard deviations for ``policy.json``: the network's or RLlib's default.

        The distribution's bounds are constants of RLlib. The bundle holds them, because its reader has no RLlib.
        """
        from ray.rllib.utils.numpy import MAX_LOG_NN_OUTPUT, MIN_LOG_NN_OUTPUT

        head = super().describe(module, layers)
        return head | {"log_std_bounds": head["log_std_bounds"] or (float(MIN_LOG_NN_OUTPUT), float(MAX_LOG_NN_OUTPUT))}

    def choose_best(self, out: Values) -> Values:
        """Choose the tanh of the Gaussian's mean (Haarnoja et al. 2018).

        RLlib's own evaluation leaves the tanh out (ray 2.60, ray issue 51544), which acts unlike the policy that was
        trained.
        """
        mean = super().choose_best(out)
        squashed: Values = torch.tanh(mean) if isinstance(mean, torch.Tensor) else np.tanh(mean)
        return squashed

    def draw(self, out: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Sample from the Gaussian and squash the sample by tanh."""
        drawn: np.ndarray = np.tanh(super().draw(out, noise))
        return drawn


class PartsHead(GaussianHead):
    """The logits of several choices (batch, values), and behind them mean and log standard deviation of numbers.

    What it chooses are rows as `rltune.envs.actions.ActionParts` decodes them: the indices of the choices, and then the
    numbers. RLlib's ``TorchMultiCategorical`` and ``TorchMultiDistribution`` have the same outputs.
    """

    kind = "parts"

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self.segments = Segments(settings["sizes"])

    @classmethod
    def describe(cls, module: Any = None, layers: Any = None, sizes: Sequence[int] = ()) -> dict[str, Any]:
        """Describe the sizes of the choices for ``policy.json``; RLlib clips no log standard deviations beside them."""
        return {"kind": cls.kind, "sizes": [int(size) for size in sizes], "log_std_bounds": None}

    def count_outputs(self, size: int) -> int:
        """Count an output for each value of each choice, and two for each number."""
        return self.segments.width + 2 * (size - self.segments.count)

    def choose_best(self, out: Values) -> Values:
        """Choose the index with the largest logit of each choice, and the means of the Gaussian."""
        return self._join(self.segments.find_best(out), super().choose_best(out[:, self.segments.width :]))

    def draw(self, out: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Sample each choice by the Gumbel-max trick, and the numbers from the Gaussian.

        Args:
            out: The network's output (batch, outputs).
            noise: Gumbel noise for each logit, and then normal noise for each number.
        """
        width = self.segments.width
        choices = self.segments.find_best(out[:, :width] + noise[:, :width])
        return self._join(choices, super().draw(out[:, width:], noise[:, width:]))

    def sample(self, out: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Sample an action as `draw` does, with noise that is drawn from the generator."""
        width, rows = self.segments.width, len(out)
        normal = rng.standard_normal((rows, (out.shape[1] - width) // 2), dtype=np.float32)
        return self.draw(out, np.concatenate([rng.gumbel(size=(rows, width)), normal], axis=1))

    def _join(self, choices: Values, numbers: Values) -> Values:
        if not numbers.shape[1]:
            return choices
        if isinstance(numbers, torch.Tensor):
            return torch.cat((choices.to(numbers.dtype), numbers), dim=1)
        joined: Values = np.concatenate([choices, numbers], axis=1, dtype=np.float32)
        return joined


class Segments:
    """The logits of several choices, one behind the other; choices have any number of values.

    Args:
        sizes: The number of values of each choice.
        device: Where its tensors lie.

    Attributes:
        count: The number of choices.
        width: The number of logits.
        begins: Where the logits of each choice begin [choices].
        is_even: Whether all choices have as many values.
    """

    def __init__(self, sizes: Sequence[int], device: Any = "cpu") -> None:
        self.sizes = tuple(int(size) for size in sizes)
        self.count, self.width, longest = len(self.sizes), sum(self.sizes), max(self.sizes, default=1)
        # Each choice becomes a row of the longest one's width. What is missing is column `width`, with a logit of -inf.
        places = np.full((self.count, longest), self.width)
        is_value = np.arange(longest) < np.array(self.sizes, np.int64).reshape(-1, 1)
        places[is_value] = np.arange(self.width)
        self.is_even = bool(is_value.all())
        self._rows = places.ravel()
        begins = np.cumsum([0, *self.sizes[:-1]])[: self.count]
        self.begins, self._places, self._columns = (
            torch.from_numpy(each).to(device) for each in (begins, self._rows, np.flatnonzero(is_value))
        )

    def split(self, logits: Values) -> Values:
        """Return the logits [rows, choices, values] of each choice, -inf where it has no such value."""
        form, logits = (logits.shape[0], self.count, -1), logits[:, : self.width]
        if not self.is_even:
            if isinstance(logits, torch.Tensor):
                logits = nn.functional.pad(logits, (0, 1), value=-math.inf)[:, self._places]
            else:
                logits = np.pad(logits, ((0, 0), (0, 1)), constant_values=-math.inf)[:, self._rows]
        return logits.reshape(*form) if self.count else logits.reshape(form[0], 0, 1)

    def join(self, parts: torch.Tensor) -> torch.Tensor:
        """Return numbers of each choice's values [rows, choices, values] one behind the other: `split` undone."""
        flat = parts.flatten(1)
        return flat if self.is_even else flat[:, self._columns]

    def find_best(self, logits: Values) -> Values:
        """Return the index of the largest logit of each choice [rows, choices]."""
        best: Values = self.split(logits).argmax(-1)
        return best


HEADS: dict[str, type[Head]] = {
    head.kind: head for head in (CategoricalHead, QHead, GaussianHead, SquashedGaussianHead, PartsHead)
}


def make_head(settings: dict[str, Any]) -> Head:
    """Make the head that ``policy.json`` describes.

    Raises:
        ValueError: This reader does not know it.
    """
    kind = settings["kind"]
    if kind not in HEADS:
        raise ValueError(f"unknown head {kind}: this bundle needs a newer rltune")
    return HEADS[kind](settings)


class Network(nn.Module):
    """A policy's inference network: maps the views of rows (batch, columns) to its `Head`'s outputs.

    A network with memory (an LSTM after the encoder) begins episodes with ``forward``; ``step`` carries the memory on.

    Attributes:
        head: What the output means.
        memory_size: Numbers that an episode's memory takes: the LSTM's output and its cell; 0 without memory.
        extractor: Code of somebody's that makes features of observations; None without.
    """

    def __init__(
        self, spec: dict[str, Any], weights: dict[str, np.ndarray], extractor: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.layout = Layout.from_dict(spec["layout"])
        self.head, self.extractor = make_head(spec["head"]), extractor
        self.parts = nn.ModuleDict({name: _build_layers(layers) for name, layers in spec["layers"].items()})
        if "log_std" in weights:
            self.log_std = nn.Parameter(torch.empty(weights["log_std"].shape))
        state = {key: torch.from_numpy(weights[key.removeprefix("parts.")]) for key in self.state_dict()}
        self.load_state_dict(state, assign=True)
        self.requires_grad_(False).eval()
        self.memory_size = _count_memory(spec)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Compute the outputs for observations at the start of an episode, where the LSTM's state is zero."""
        return self.step(rows, rows.new_zeros(rows.shape[0], self.memory_size))[0]

    def step(self, rows: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the outputs and the next LSTM state from observations and state (batch, memory_size)."""
        hidden = self.parts["encoder"](self.extractor(rows) if self.extractor else self.read_images(rows))
        if self.memory_size:
            hidden, cell = self.parts["memory"][0](hidden, memory.chunk(2, dim=-1))  # type: ignore[index]
            memory = torch.cat((hidden, cell), dim=-1)
        return self._mask(rows, self.head.compute_output(self, hidden)), memory

    def _mask(self, rows: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Return the outputs with `ILLEGAL` for illegal actions; those of numbers follow those of choices."""
        if (leaf := self.layout.mask) is None:
            return out
        legal = torch.where(rows[:, self.layout.columns(leaf)] != 0, out[:, : leaf.size], ILLEGAL)
        return torch.cat([legal, out[:, leaf.size :]], dim=1)

    def read_images(self, rows: torch.Tensor) -> torch.Tensor:
        """Return what the images' own layers make of them, and all other columns; no network sees a mask."""
        if not self.layout.images:
            return rows if self.layout.mask is None else rows[:, : -self.layout.mask.size]
        seen = []
        for index, leaf in enumerate(self.layout.images):
            image = rows[:, self.layout.columns(leaf)]
            seen.append(self.parts[f"image{index}"](image / leaf.scale if leaf.scale != 1 else image))
        return torch.cat([*seen, *(rows[:, columns] for columns in self.layout.other_columns)], dim=1)


def _count_memory(spec: dict[str, Any]) -> int:
    """Count the numbers that an episode's memory takes."""
    return sum(2 * int(cell["hidden_size"]) for cell in spec["layers"].get("memory", ()))


class GraphNetwork(nn.Module):
    """A policy's network as an ONNX graph, for want of the code of which a part of it consists.

    Attributes:
        head: As in `Network`.
        memory_size: As in `Network`.
    """

    def __init__(self, spec: dict[str, Any], graph: bytes) -> None:
        super().__init__()
        self.head, self._session, self.memory_size = make_head(spec["head"]), open_graph(graph), _count_memory(spec)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Compute the outputs for observations at the start of an episode, where the LSTM's state is zero."""
        return self.step(rows, rows.new_zeros(rows.shape[0], self.memory_size))[0]

    def step(self, rows: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the outputs and the next LSTM state as `Network.step` does."""
        inputs = {"rows": rows.numpy()} | ({"memory": memory.numpy()} if self.memory_size else {})
        out, *after = map(torch.from_numpy, self._session.run(None, inputs))
        return out, after[0] if after else memory


def open_graph(content: bytes) -> Any:
    """Open an ONNX graph on the CPU; from bytes, so that it cannot name other files that hold its weights.

    Raises:
        ValueError: It cannot be opened, or onnxruntime is not installed.
    """
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # Threads that spin while they wait would take the cores of those that step environments.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors derive from Exception alone.
        raise ValueError(f"an ONNX graph cannot be opened: {error}") from error


def _build_layers(layers: list[dict[str, Any]]) -> nn.Sequential:
    """Build the torch layers that ``policy.json`` lists; their weights are loaded later."""
    built = []
    for entry in layers:
        kind, kwargs = entry["type"], {k: v for k, v in entry.items() if k != "type"}
        if kind not in LAYERS:
            raise ValueError(f"unknown layer {kind}: this bundle needs a newer rltune")
        layer: type[nn.Module] = Permute if kind == "Permute" else getattr(nn, kind)
        built.append(layer(**kwargs, **({"device": "meta"} if kind in WEIGHTED else {})))
    return nn.Sequential(*built)


# This class and the next one are named tuples and no dataclasses: ``served_model`` loads this file without registering
# it in ``sys.modules``, where the dataclass decorator looks up its module.
class ObservationFilter(NamedTuple):
    """The observation normalisation that the policy was trained with: ``clip((x - mean) / scale)``.

    Attributes:
        mean: One a feature.
        scale: Standard deviation plus epsilon, one a feature.
        clip: The bound of what comes out; 0 or None: none.
    """

    mean: np.ndarray
    scale: np.ndarray
    clip: float | None

    def apply(self, rows: Values) -> Values:
        """Normalise observations (batch, features) with the statistics of the training."""
        rows = (rows - self.mean) / self.scale
        return rows.clip(-self.clip, self.clip) if self.clip else rows


class BundlePolicy:
    """A trained policy that acts on NumPy observations; it normalises observations and scales actions as in training.

    Attributes:
        info: Where it came from: ``algo``, ``env``, ``params``, ``env_steps``, ``objective``, ``seed``,
            ``sweep``, ``trial``, and ``run`` (``trial 7``, ``baseline-seed-2``), as far as its writer knew.
        spaces: ``observation`` and ``action`` of the environment as JSON-able descriptions, without gymnasium.
        layout: The layout of its observations.
        head: The kind of its head, a key of `HEADS`.
        observation_filter: The normalisation of observations; None without.
        actions: Turns the network's choices into actions of the environment.
        acting: How it acts unless its caller says so, and what that follows from (``choose_acting`` of ``acting`` made
            it). None if it acts deterministically.
        extractor: The class and the arguments of the code that makes features of observations, ``class`` and
            ``kwargs``; None if there are layers alone. Such a network is made when it is first used.
        graph: The network as ONNX, which runs nobody's code; registered policies with an extractor have one.
        is_trusted: Tells whether the modules that its environment and its extractor name may be imported.
    """

    is_trusted: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(self, spec: dict[str, Any], weights: dict[str, np.ndarray], graph: bytes | None = None) -> None:
        self.info: dict[str, Any] = spec["info"]
        self.acting: dict[str, Any] | None = spec.get("acting")
        self.extractor: dict[str, Any] | None = spec.get("extractor")
        self.graph, self._spec, self._weights = graph, spec, weights
        head = make_head(spec["head"]) if self.extractor else self.network.head
        self.spaces: dict[str, dict[str, Any]] = {k: spec[f"{k}_space"] for k in ("observation", "action")}
        self.head: str = head.kind
        self.layout = Layout.from_dict(spec["layout"])
        self.observation_filter = _read_filter(spec.get("observation_filter"), weights)
        # A head of one choice chooses among all combinations, of which an action may have only one.
        self.actions = ActionParts(self.spaces["action"], joint=head.is_discrete, clips=spec["actions"] != "normalize")
        self._memory: np.ndarray | None = None

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load a policy from the folder of its bundle.

        Raises:
            FileNotFoundError: There is no bundle in ``folder``.
            ValueError: Its files are damaged or of a later format.
        """
        root = Path(folder)
        spec = _read_description(root)
        try:
            if not isinstance(spec["info"], dict) or not isinstance(spec["info"].get("env") or {}, dict):
                raise ValueError(f"{root} is damaged: its policy.json does not say where the policy came from")
            if max(_count_numbers(spec[f"{key}_space"]) for key in ("observation", "action")) > MAX_NUMBERS:
                raise ValueError("a space of this bundle is damaged: it has more numbers than any policy takes")
            _check_arrays(root / "weights.npz")
            graph = root / GRAPH_FILE
            with np.load(root / "weights.npz", allow_pickle=False) as arrays:
                return cls(spec, dict(arrays), graph.read_bytes() if graph.is_file() else None)
        except (ValueError, OSError):
            raise
        except Exception as error:  # Whatever its author wrote into it.
            raise ValueError(f"{root} is damaged: {error!r}") from error

    def __repr__(self) -> str:
        """Describe the policy in one line: algorithm, environment, sweep and trial, and spaces."""
        env = (self.info.get("env") or {}).get("id", "an unnamed environment")
        trial = "" if self.info.get("trial") is None else f"trial {self.info['trial']}"
        run = self.info.get("run", trial)
        origin = run and ", " + " of ".join(str(part) for part in (run, self.info.get("sweep")) if part)
        sees, does = (format_space(self.spaces[key]) for key in ("observation", "action"))
        way = "" if self.deterministic else ", sampled"
        return f"<Policy {self.info.get('algo', '?')} for {env}{origin}: {sees} -> {does}{way}>"

    @functools.cached_property
    def network(self) -> Network | GraphNetwork:
        """The network, a `Network` or a `GraphNetwork`."""
        return self.make_network()

    def make_network(self) -> Network | GraphNetwork:
        """Make the network, as a graph if it has an extractor. Subclasses may override it.

        Raises:
            ValueError: It has an extractor and no graph.
        """
        if not self.extractor:
            return Network(self._spec, self._weights)
        if self.graph is None:
            raise ValueError(f"the network needs {self.extractor.get('class')}, and has no ONNX graph")
        return GraphNetwork(self._spec, self.graph)

    @property
    def deterministic(self) -> bool:
        """Whether it acts deterministically unless its caller says otherwise; else it samples its actions."""
        return self.acting is None or bool(self.acting["deterministic"])

    @property
    def has_distribution(self) -> bool:
        """Whether its actions can be sampled from the distribution that training sampled from."""
        return HEADS[self.head].is_distribution

    @property
    def observation_space(self) -> Any:
        """The environment's observation space; needs gymnasium."""
        return make_space(self.spaces["observation"])

    @property
    def action_space(self) -> Any:
        """The environment's action space; needs gymnasium."""
        return make_space(self.spaces["action"])

    @property
    def memory_size(self) -> int:
        """The size of a recurrent policy's hidden state for one episode; 0 for a policy without memory."""
        return _count_memory(self._spec)

    def reset(self) -> None:
        """Clear the hidden state of a recurrent policy before a new episode; other policies do not need this."""
        self._memory = None

    def act(self, obs: Any, deterministic: bool | None = None, rng: Rng = None, action_mask: Any = None) -> Any:
        """Choose the action for one observation, or the actions for a batch of observations.

        A recurrent policy continues the episodes of the call before, one for each observation, until ``reset``.
        ``predict`` leaves its memory to the caller.

        Args:
            obs: One observation, as the environment gives it, or a batch, in which each part has one more axis in
                front, as Gymnasium's vector environments and `stack` give it.
            deterministic: True, as RLlib with ``explore=False``: the most likely action, the mean, the best value.
                False: sampled from the policy's distribution; a Q policy explores with its last epsilon. None: as the
                policy's own ``deterministic`` says.
            rng: Draws sampled actions: a generator, one generator for each observation of a batch, or a seed for this
                call alone. None: a new generator in each call.
            action_mask: Which actions are legal, as the environment says it beside the observation; a batch has one
                more axis in front. Needed by policies that were trained with it.

        Returns:
            What ``env.step`` takes, a NumPy scalar or an array, or a dict or tuple of parts; with a batch axis in front
            of each part where ``obs`` has one.

        Raises:
            ValueError: ``obs`` fits neither one observation nor a batch, or ``action_mask`` is missing.
        """
        actions, self._memory = self.predict(obs, self._memory, None, deterministic, rng, action_mask)
        # The index [()] turns a zero-dimensional array into a NumPy scalar, as which a Discrete action is passed.
        return actions[()] if self.spaces["action"]["type"] == "Discrete" else actions

    def predict(
        self,
        obs: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool | None = None,
        rng: Rng = None,
        action_mask: Any = None,
    ) -> tuple[Any, Any]:
        """Choose actions with the signature of Stable-Baselines3's ``predict``, for evaluation code written for it.

        Args:
            obs: As for ``act``.
            state: A recurrent policy's memory as the last call returned it, (batch, memory_size); None where all
                episodes begin. Handed back by policies without memory.
            episode_start: Which episodes begin with their observation: their memory is not used.
            deterministic: As for ``act``. Stable-Baselines3's own default is False; its evaluation passes True.
            rng: As for ``act``.
            action_mask: As for ``act``.

        Returns:
            The actions, and the state for the next call.
        """
        rows, memory, single = self.prepare_inputs(obs, state, action_mask)
        if episode_start is not None and self.memory_size:
            memory = np.where(np.asarray(episode_start, dtype=bool).reshape(-1, 1), np.float32(0), memory)
        with torch.inference_mode():
            out, after = self.network.step(torch.from_numpy(rows), torch.from_numpy(memory))
        head, outputs = self.network.head, out.numpy()
        is_deterministic = self.deterministic if deterministic is None else deterministic
        chosen = head.choose_best(outputs) if is_deterministic else _sample(head, outputs, rng)
        if single and self.actions.is_nested:
            actions = self.actions.decode_one(chosen[0])
        else:
            actions = self.actions.decode(chosen)
            actions = np.asarray(actions[0]) if single else actions
        return actions, after.numpy() if self.memory_size else state

    def prepare_inputs(self, obs: Any, state: Any, action_mask: Any = None) -> tuple[np.ndarray, np.ndarray, bool]:
        """Encode observations and the hidden state as inputs of the network. Subclasses may override it.

        Returns:
            The views of rows (batch, columns), the memory (batch, memory_size), which is zero if ``state`` is None, and
            whether ``obs`` was a single observation.

        Raises:
            ValueError: ``obs`` fits neither one observation nor a batch, or holds what is no observation: text, NaN, an
                infinite number, or one that a discrete space does not have. A Box's bounds are not checked, because
                environments leave them; see ``check_range``. Or ``state`` is the memory of another number of episodes
                or of another policy, or not finite. Or the policy needs a mask, or has none, or nothing is legal.
        """
        rows, single = self._encode_observations(obs, action_mask)
        return rows, self._read_memory(state, len(rows)), single

    def _read_memory(self, state: Any, num_episodes: int) -> np.ndarray:
        shape = (num_episodes, self.memory_size)
        if state is None or not self.memory_size:
            return np.zeros(shape, np.float32)
        memory = np.asarray(state, np.float32)
        if memory.shape != shape:
            raise ValueError(f"the memory has shape {memory.shape}, but {num_episodes} observations need {shape}")
        _check_finite(memory, "a memory")
        return memory

    def _encode_observations(self, obs: Any, action_mask: Any) -> tuple[np.ndarray, bool]:
        if action_mask is not None and self.layout.mask is None:
            raise ValueError("this policy was trained without an action mask")
        mask = self.layout.find_mask(obs) if action_mask is None else action_mask
        encoded, single = self.layout.encode_batch(obs, self.actions.flatten_mask(mask))
        rows: np.ndarray = self.layout.view(encoded)
        if self.observation_filter is not None:
            # The observation normalisation clips, and so would hide infinite numbers.
            _check_finite(rows, "an observation")
            rows = self._filter(rows, self.observation_filter)
        rows = np.ascontiguousarray(rows, dtype=np.float32)
        _check_finite(rows, "an observation")
        if self.layout.mask is not None:
            begins = np.cumsum([0, *self.actions.sizes[:-1]])
            flags = rows[:, self.layout.columns(self.layout.mask)]
            if not np.maximum.reduceat(flags, begins, axis=1).all():
                raise ValueError("no action is legal by the action mask")
        return rows, single

    @property
    def needs_mask(self) -> bool:
        """Whether it acts only with an ``action_mask`` beside the observation."""
        return self.layout.mask is not None and not self.layout.mask.path

    def _filter(self, rows: np.ndarray, normalise: ObservationFilter) -> np.ndarray:
        """Normalise the columns of vectors; others stay as they are."""
        if self.layout.is_vector:
            return normalise.apply(rows)
        rows, columns = rows.copy(), self.layout.vector_columns
        rows[:, columns] = normalise.apply(rows[:, columns])
        return rows

    def stack(self, observations: Sequence[Any]) -> Any:
        """Stack single observations into a batch for ``act`` and ``predict``."""
        return self.layout.stack(observations, self.actions.flatten_mask)

    def check_range(self, obs: Any) -> None:
        """Refuse observations far outside of a Box, which probably have other units; meant for served models.

        Raises:
            ValueError: A number of an integer space is outside its bounds, or one of another space by more than
                ``BEYOND`` times the width of its range.
        """
        for leaf in self.layout.leaves:
            if leaf is self.layout.mask and not leaf.path:  # It is beside the observations.
                continue
            space, part = self.spaces["observation"], obs
            try:
                for key in leaf.path:
                    part, space = part[key], dict(list_children(space))[key]
            except (KeyError, IndexError, TypeError):
                continue  # `act` says what is missing.
            array = np.asarray(part)
            ends = array.shape[array.ndim - len(leaf.shape) :]
            if space["type"] == "Box" and array.dtype.kind in "fiub" and ends == leaf.shape:
                _check_range(space, array, "an observation" if not leaf.path else leaf.name)


def _check_range(space: dict[str, Any], array: np.ndarray, name: str) -> None:
    shape, dtype = tuple(space["shape"]), np.dtype(space["dtype"])
    low, high = (read_bound(space[key], shape, dtype).astype(np.float64) for key in ("low", "high"))
    bounded = np.isfinite(low) & np.isfinite(high)
    room = 0.0 if dtype.kind in "iu" else BEYOND * np.where(bounded, high - low, np.inf)
    outside = bounded & ((array < low - room) | (array > high + room))
    if outside.any():
        at = tuple(np.argwhere(outside)[0])
        least, most = (np.broadcast_to(bound, array.shape)[at] for bound in (low, high))
        raise ValueError(f"{name} holds {array[at]} where {least:g} to {most:g} is the range")


def _sample(head: Head, out: np.ndarray, rng: Rng) -> np.ndarray:
    """Sample an action for each row of a network's output, with a generator for all rows or one for each."""
    if not isinstance(rng, Sequence):
        return head.sample(out, np.random.default_rng(rng))
    return np.concatenate([head.sample(row[None], generator) for row, generator in zip(out, rng, strict=True)])


def _check_finite(values: np.ndarray, what: str) -> None:
    """Refuse NaN and infinite numbers, for which a network would return a meaningless action.

    Raises:
        ValueError: There are some.
    """
    # For a few numbers, summing in Python is five times as fast as np.isfinite.
    if not (np.isfinite(values).all() if values.size > 64 else math.isfinite(sum(values.ravel().tolist()))):
        flat = values.ravel()
        raise ValueError(f"{what} holds {flat[~np.isfinite(flat)][0]}, which is no finite number")


def read_owners(folder: Path) -> dict[str, str]:
    """Read from a multi-agent checkpoint which policy acts for which agent.

    Returns:
        The name of each agent's policy, which is its folder's under ``policies/``. Empty for the bundle of one agent.

    Raises:
        ValueError: The folder is of a later format.
    """
    if not (folder / POLICIES).is_dir():
        return {}
    owners = _read_description(folder).get("owners")
    names = list(owners.values()) if isinstance(owners, dict) else [None]
    # A name is that of a folder, and leads nowhere else.
    if not all(isinstance(name, str) and Path(name).name == name not in ("", "..") for name in names):
        raise ValueError(f"{folder} is damaged: its policy.json does not say which policy acts for which agent")
    return cast(dict[str, str], owners)


def _read_description(folder: Path) -> dict[str, Any]:
    try:
        about = _clean(json.loads((folder / "policy.json").read_text(encoding="utf-8")))
        version = about.get("format")
    except (AttributeError, RecursionError, ValueError) as error:
        raise ValueError(f"{folder} is damaged: its policy.json is no description of a policy") from error
    if version not in range(1, FORMAT + 1):
        raise ValueError(f"{folder} has format {version}, this rltune reads formats up to {FORMAT}")
    return cast(dict[str, Any], about)


def _clean(value: Any, depth: int = 0, keeps_lines: bool = False) -> Any:
    """Escape the control characters of all texts in ``policy.json``, which may be printed.

    Args:
        value: What JSON has.
        depth: How deep it is nested.
        keeps_lines: Whether line breaks stay, as in the arguments of an environment, which may be a map.

    Raises:
        ValueError: It is nested too deep.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"policy.json is damaged: it is nested deeper than {MAX_DEPTH}")
    if isinstance(value, str):
        kept = "\t\n\r" if keeps_lines else ""
        return CONTROLS.sub(lambda sign: sign[0] if sign[0] in kept else ascii(sign[0])[1:-1], value)
    if isinstance(value, list):
        return [part if isinstance(part, float) else _clean(part, depth + 1, keeps_lines) for part in value]
    if isinstance(value, dict):
        items = value.items()
        return {_clean(key): _clean(part, depth + 1, keeps_lines or key == "kwargs") for key, part in items}
    return value


def _count_numbers(space: dict[str, Any]) -> int:
    if space["type"] in ("Dict", "Tuple"):
        return sum(_count_numbers(part) for _, part in list_children(space))
    if space["type"] == "MultiDiscrete":
        return int(np.sum(np.array(space["nvec"], np.int64)))
    shape = space["shape"] if "shape" in space else space.get("n", 0)
    sizes = [*shape] if isinstance(shape, list) else [shape]
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError(f"a space of this bundle is damaged: its size is {str(sizes)[:80]}")
    return math.prod(sizes)


def _check_arrays(file: Path) -> None:
    """Refuse arrays that would take more memory than their file has bytes, before any of them is unpacked.

    `rltune.policies.bundle_writer` stores arrays as they are: compressed zeros of a kilobyte are a megabyte.

    Raises:
        ValueError: They are compressed, overlap, or their heads announce more than follows.
    """
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > file.stat().st_size:
            raise ValueError(f"{file} is damaged: its arrays are larger than the file")
        for entry in entries:
            with archive.open(entry) as stream:
                read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                shape, _, dtype = read[np.lib.format.read_magic(stream)](stream)
                if not dtype.hasobject and math.prod(shape) * dtype.itemsize != entry.file_size - stream.tell():
                    raise ValueError(f"{file} is damaged: {entry.filename[:80]!r} has another size than its head says")


def format_space(description: dict[str, Any]) -> str:
    """Format a space without its bounds, such as ``Box(4,)`` or ``Dict(camera: Box(84, 84, 3), goal: Discrete(2))``."""
    kind = description["type"]
    if kind in ("Dict", "Tuple"):
        return f"{kind}({', '.join(f'{key}: {format_space(part)}' for key, part in list_children(description))})"
    if kind == "Box":
        return f"Box{tuple(description['shape'])}"
    return f"{kind}({description['nvec'] if kind == 'MultiDiscrete' else description.get('n', '')})"


def _read_filter(settings: dict[str, Any] | None, weights: dict[str, np.ndarray]) -> ObservationFilter | None:
    if not settings:
        return None
    # RLlib's RunningStat computes in float32; another precision would change the actions' last bits.
    std = np.sqrt(np.maximum(0, weights["observation.var"].astype(np.float32)))
    return ObservationFilter(weights["observation.mean"], std + np.float32(settings["eps"]), settings["clip"])
