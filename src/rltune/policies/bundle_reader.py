"""A policy's files, read: the network rebuilt and the policy that acts with it.

This file imports only the standard library, NumPy and torch, and nothing of rltune: it travels inside
registered MLflow models, where neither rltune nor ray is installed (``served`` loads it there). Nothing in a
bundle is pickled, so reading one runs no code of its author's.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

FORMAT = 1
# What a layer needs beside its weights, by torch's class name. New layer types are added here.
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
WEIGHTED = ("Linear", "LayerNorm", "Conv2d", "LSTMCell")


class Permute(nn.Module):
    """Axes in another order: RLlib's images have their channels last, torch's first."""

    def __init__(self, dims: list[int]) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same numbers."""
        return x.permute(*self.dims)


class Network(nn.Module):
    """The inference network: observations as float32 rows in, what the head's distribution needs out.

    ``forward`` maps (batch, features) to logits (batch, actions) for a categorical head, to mean and log
    standard deviation side by side (batch, 2 x action size) for the Gaussian ones, and to values
    (batch, actions) for a Q head. One with memory (an LSTM after the encoder) does so for the first step of an episode;
    ``step`` carries the memory on.

    Attributes:
        memory_size: Numbers that an episode's memory takes: the LSTM's output and its cell; 0 without memory.
    """

    def __init__(self, spec: dict[str, Any], weights: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.head_spec: dict[str, Any] = spec["head"]
        self.parts = nn.ModuleDict({name: _build(layers) for name, layers in spec["layers"].items()})
        if "log_std" in weights:
            self.log_std = nn.Parameter(torch.empty(weights["log_std"].shape))
        own = {key: torch.from_numpy(weights[key.removeprefix("parts.")]) for key in self.state_dict()}
        self.load_state_dict(own, assign=True)
        self.requires_grad_(False).eval()
        cell: Any = self.parts["memory"][0] if "memory" in self.parts else None  # type: ignore[index]
        self.memory_size: int = 2 * cell.hidden_size if cell else 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Map observations to what the head's distribution needs; shapes as the class says."""
        return self.step(rows, rows.new_zeros(rows.shape[0], self.memory_size))[0]

    def step(self, rows: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As ``forward``, from and to a memory (batch, memory_size); zeros where an episode begins."""
        hidden = self.parts["encoder"](rows)
        if self.memory_size:
            hidden, cell = self.parts["memory"][0](hidden, memory.chunk(2, dim=-1))  # type: ignore[index]
            memory = torch.cat((hidden, cell), dim=-1)
        return self._headed(hidden), memory

    def _headed(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.parts["head"](hidden)
        kind = self.head_spec["kind"]
        if kind == "q":
            return self._values(out, hidden)
        if kind == "categorical":
            return out
        if hasattr(self, "log_std"):
            mean, log_std = out, self.log_std.expand_as(out)
        else:
            mean, log_std = out.chunk(2, dim=-1)
        if self.head_spec["log_std_bounds"]:
            log_std = log_std.clamp(*self.head_spec["log_std_bounds"])
        return torch.cat((mean, log_std), dim=-1)

    def _values(self, out: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Q values as RLlib combines them (dueling: Wang et al. 2016; C51: Bellemare et al. 2017)."""
        head = self.head_spec
        if head["atoms"] > 1:
            out = out.view(out.shape[0], -1, head["atoms"])
        if head["dueling"]:
            value: torch.Tensor = self.parts["value"](hidden)
            # RLlib centres distributional advantages over the atoms, not over the actions (ray 2.60).
            out = out - out.mean(dim=-1, keepdim=True) + value.view(-1, *(1,) * (out.dim() - 1))
        if head["atoms"] == 1:
            return out
        support = torch.arange(0.0, head["atoms"], dtype=torch.float32)
        support = head["v_min"] + support * (head["v_max"] - head["v_min"]) / float(head["atoms"] - 1)
        return torch.sum(support * torch.softmax(out, dim=-1), dim=-1)


def _build(layers: list[dict[str, Any]]) -> nn.Sequential:
    """Torch layers from their entries, without initial weights: those follow from the file."""
    built = []
    for entry in layers:
        kind, kwargs = entry["type"], {k: v for k, v in entry.items() if k != "type"}
        if kind not in LAYERS:
            raise ValueError(f"unknown layer {kind}: this bundle needs a newer rltune")
        made: type[nn.Module] = Permute if kind == "Permute" else getattr(nn, kind)
        built.append(made(**kwargs, **({"device": "meta"} if kind in WEIGHTED else {})))
    return nn.Sequential(*built)


class Policy:
    """A trained policy that acts on NumPy observations, with the pre- and post-processing of its training.

    Attributes:
        info: Where it came from: ``algo``, ``env``, ``params``, ``env_steps``, ``objective``, ``seed``,
            ``sweep``, ``trial``, as far as its writer knew.
        network: The torch module behind it.
        spaces: ``observation`` and ``action`` as JSON-able descriptions, without gymnasium.
    """

    def __init__(self, spec: dict[str, Any], weights: dict[str, np.ndarray]) -> None:
        self.info: dict[str, Any] = spec["info"]
        self.network = Network(spec, weights)
        self.spaces: dict[str, dict[str, Any]] = {k: spec[f"{k}_space"] for k in ("observation", "action")}
        self._spec, self._kind = spec, spec["head"]["kind"]
        self._rng = np.random.default_rng()
        self._memory: np.ndarray | None = None
        observation, action = self.spaces["observation"], self.spaces["action"]
        self._shape: tuple[int, ...] = tuple(observation.get("shape", ()))
        if spec.get("observation_filter"):
            # float32 as in RLlib's RunningStat, so that actions are the same to the last bit.
            std = np.sqrt(np.maximum(0, weights["observation.var"].astype(np.float32)))
            self._mean = weights["observation.mean"]
            self._scale = std + np.float32(spec["observation_filter"]["eps"])
        if action["type"] == "Box":
            self._action_shape = tuple(action["shape"])
            self._low, self._high = (_array(action, key) for key in ("low", "high"))
            bounded = np.isfinite([self._low, self._high]).all()
            self._half = (self._high - self._low) / 2.0 if bounded else None

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a bundle.

        Raises:
            FileNotFoundError: There is no bundle in ``folder``.
            ValueError: Its files are damaged or of a later format.
        """
        root = Path(folder)
        spec = json.loads((root / "policy.json").read_text(encoding="utf-8"))
        if spec.get("format") != FORMAT:
            raise ValueError(f"{root} has format {spec.get('format')}, this rltune reads {FORMAT}")
        try:
            with np.load(root / "weights.npz", allow_pickle=False) as arrays:
                return cls(spec, dict(arrays))
        except (KeyError, TypeError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{root} is damaged: {error!r}") from error

    @property
    def observation_space(self) -> Any:
        """The environment's observation space; needs gymnasium."""
        return build_space(self.spaces["observation"])

    @property
    def action_space(self) -> Any:
        """The environment's action space; needs gymnasium."""
        return build_space(self.spaces["action"])

    def seed(self, seed: int | None) -> None:
        """Seed the policy's own generator, which draws sampled actions where ``act`` is given none."""
        self._rng = np.random.default_rng(seed)

    @property
    def memory_size(self) -> int:
        """Numbers that a recurrent policy remembers of an episode; 0 for a policy without memory."""
        return self.network.memory_size

    def reset(self) -> None:
        """Forget: the next ``act`` begins an episode. Needed by recurrent policies alone, harmless for others."""
        self._memory = None

    def act(self, obs: Any, deterministic: bool = True, rng: np.random.Generator | int | None = None) -> Any:
        """The action for one observation, or the actions for a batch of them.

        A recurrent policy goes on from the call before: one episode, or side by side as many as the batch has
        observations, until ``reset``. ``predict`` leaves its memory to the caller.

        Args:
            obs: One observation, of the observation space's shape, or a batch with one more axis in front.
            deterministic: As RLlib with ``explore=False``: the most likely action, the mean, the best value.
                Otherwise sampled from the policy's distribution; a Q policy explores with its last epsilon.
            rng: Draws sampled actions: a generator, or a seed for this call alone. None: the policy's own.

        Returns:
            A NumPy scalar or array to pass to ``env.step``; with a batch axis in front where ``obs`` has one.

        Raises:
            ValueError: ``obs`` fits neither one observation nor a batch.
        """
        rows, single = self._rows(obs)
        actions, self._memory = self._decide(rows, self._recalled(self._memory, len(rows)), deterministic, rng)
        return actions[0] if single else actions

    def predict(
        self,
        obs: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        rng: np.random.Generator | int | None = None,
    ) -> tuple[np.ndarray, Any]:
        """Act with the signature of Stable-Baselines3, for evaluation code written for it.

        Args:
            obs: As for ``act``.
            state: A recurrent policy's memory as the last call returned it, (batch, memory_size); None where all
                episodes begin. Handed back by policies without memory.
            episode_start: Which episodes begin with their observation: their memory is not used.
            deterministic: As for ``act``. Stable-Baselines3's own default is False; evaluation passes True.
            rng: As for ``act``.

        Returns:
            The actions, and the state for the next call.
        """
        rows, single = self._rows(obs)
        memory = self._recalled(state if self.memory_size else None, len(rows))
        if episode_start is not None and self.memory_size:
            memory = np.where(np.asarray(episode_start, dtype=bool).reshape(-1, 1), np.float32(0), memory)
        actions, memory = self._decide(rows, memory, deterministic, rng)
        return np.asarray(actions[0] if single else actions), memory if self.memory_size else state

    def _recalled(self, state: Any, num_episodes: int) -> np.ndarray:
        """A memory (batch, memory_size), zeros for None.

        Raises:
            ValueError: It is the memory of another number of episodes, or of another policy.
        """
        wanted = (num_episodes, self.memory_size)
        if state is None or not self.memory_size:
            return np.zeros(wanted, np.float32)
        memory = np.asarray(state, np.float32)
        if memory.shape != wanted:
            raise ValueError(f"a memory of shape {memory.shape} for {num_episodes} observations: {wanted} is wanted")
        return memory

    def _decide(
        self, rows: np.ndarray, memory: np.ndarray, deterministic: bool, rng: np.random.Generator | int | None
    ) -> tuple[np.ndarray, np.ndarray]:
        with torch.inference_mode():
            out, after = self.network.step(torch.from_numpy(rows), torch.from_numpy(memory))
        chosen = self._best(out.numpy()) if deterministic else self._sample(out.numpy(), rng)
        return chosen if self.spaces["action"]["type"] == "Discrete" else self._for_env(chosen), after.numpy()

    def _rows(self, obs: Any) -> tuple[np.ndarray, bool]:
        """Observations as float32 rows (batch, features), and whether ``obs`` was a single one."""
        array = np.asarray(obs)
        single = array.shape == self._shape
        if (not single and array.shape[1:] != self._shape) or array.ndim > len(self._shape) + 1:
            raise ValueError(f"an observation has shape {self._shape}, a batch (n, *{self._shape}); got {array.shape}")
        if self.spaces["observation"]["type"] == "Discrete":
            # RLlib's FlattenObservations takes the value itself as the index, whatever the space's start.
            return np.eye(self.spaces["observation"]["n"], dtype=np.float32)[array.reshape(-1)], single
        rows = array.reshape(1 if single else len(array), -1)
        if self._spec.get("observation_filter"):
            rows, clip = (rows - self._mean) / self._scale, self._spec["observation_filter"]["clip"]
            rows = np.clip(rows, -clip, clip) if clip else rows
        return np.ascontiguousarray(rows, dtype=np.float32), single

    def _best(self, out: np.ndarray) -> np.ndarray:
        """The deterministic choice, before post-processing.

        A squashed Gaussian is deterministic at the tanh of its mean (Haarnoja et al. 2018). RLlib's own evaluation
        leaves the tanh out (ray 2.60, ray issue 51544), which acts unlike the policy that was trained.
        """
        if self._kind in ("categorical", "q"):
            return np.asarray(out.argmax(-1))
        mean: np.ndarray = out[:, : out.shape[1] // 2]
        return np.tanh(mean) if self._kind == "squashed_gaussian" else mean

    def _sample(self, out: np.ndarray, rng: np.random.Generator | int | None) -> np.ndarray:
        """A sampled choice, before post-processing."""
        rng = self._rng if rng is None else np.random.default_rng(rng)
        if self._kind == "categorical":
            # Gumbel-max: the argmax of logits with Gumbel noise is a draw from their softmax.
            return np.asarray((out + rng.gumbel(size=out.shape)).argmax(-1))
        if self._kind == "q":
            explore = rng.random(len(out)) < self._spec["head"]["epsilon"]
            return np.where(explore, rng.integers(out.shape[-1], size=len(out)), out.argmax(-1))
        mean, log_std = np.split(out, 2, axis=-1)
        chosen: np.ndarray = mean + np.exp(log_std) * rng.standard_normal(mean.shape, dtype=np.float32)
        return np.asarray(np.tanh(chosen) if self._kind == "squashed_gaussian" else chosen)

    def _for_env(self, chosen: np.ndarray) -> np.ndarray:
        """Post-process as RLlib's NormalizeAndClipActions does, in the same order of operations."""
        actions = chosen.reshape(-1, *self._action_shape)
        if self._spec["actions"] == "normalize" and self._half is not None:
            actions = self._low + (actions + 1.0) * self._half
        elif self._spec["actions"] != "clip":
            return actions
        # Not np.clip, which takes 10 us longer on one action.
        return np.asarray(np.minimum(np.maximum(actions, self._low), self._high))


def load_bundle(folder: str | Path) -> Policy:
    """Read a bundle; see ``Policy.load``."""
    return Policy.load(folder)


def build_space(description: dict[str, Any]) -> Any:
    """The gymnasium space of a description by ``describe_space``; needs gymnasium."""
    from gymnasium import spaces

    if description["type"] == "Discrete":
        return spaces.Discrete(description["n"], start=description["start"])
    low, high = (_array(description, key) for key in ("low", "high"))
    return spaces.Box(low, high, tuple(description["shape"]), np.dtype(description["dtype"]).type)


def _array(description: dict[str, Any], key: str) -> np.ndarray:
    """A Box's bound as an array of the space's shape and type."""
    shape = tuple(description["shape"])
    values = np.array(description[key], dtype=np.float64).astype(description["dtype"])  # float64 reads "inf" too
    return np.broadcast_to(values, shape) if values.ndim == 0 else values.reshape(shape)
