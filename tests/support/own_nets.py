"""Extractors as users have them, good ones and such as cannot be trained, saved or exported."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class BaseFeaturesExtractor(nn.Module):
    """The base class of Stable-Baselines3 (2.9), of which people's extractors are subclasses."""

    def __init__(self, observation_space: Any, features_dim: int = 0) -> None:
        super().__init__()
        assert features_dim > 0
        self._observation_space = observation_space
        self._features_dim = features_dim

    @property
    def features_dim(self) -> int:
        return self._features_dim


class Attention(BaseFeaturesExtractor):
    """Attends to the numbers of a vector; it has dropout, and random numbers in a buffer."""

    def __init__(self, observation_space: Any, heads: int = 2, features_dim: int = 8, dropout: float = 0.0) -> None:
        super().__init__(observation_space, features_dim)
        self.embed = nn.Linear(1, features_dim)
        self.register_buffer("places", torch.randn(int(np.prod(observation_space.shape)), features_dim))
        self.attend = nn.MultiheadAttention(features_dim, heads, batch_first=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, observations: Tensor) -> Tensor:
        tokens = self.embed(observations.flatten(1)[..., None]) + self.places
        return self.dropout((tokens + self.attend(tokens, tokens, tokens)[0]).mean(1))


class NatureCNN(BaseFeaturesExtractor):
    """Stable-Baselines3's own, which wants bytes with the channels first, and a sample to find its size."""

    def __init__(self, observation_space: Any, features_dim: int = 16) -> None:
        super().__init__(observation_space, features_dim)
        assert observation_space.dtype == np.uint8
        assert np.all(observation_space.low == 0)
        assert np.all(observation_space.high == 255)
        channels = observation_space.shape[0]
        self.cnn = nn.Sequential(nn.Conv2d(channels, 4, 8, stride=4), nn.ReLU(), nn.Flatten())
        with torch.no_grad():
            num_flat = self.cnn(torch.as_tensor(observation_space.sample()[None]).float()).shape[1]
        self.linear = nn.Sequential(nn.Linear(num_flat, features_dim), nn.ReLU())

    def forward(self, observations: Tensor) -> Tensor:
        return self.linear(self.cnn(observations))  # type: ignore[no-any-return]


class Combined(BaseFeaturesExtractor):
    """One layer for each key of a Dict, as Stable-Baselines3's CombinedExtractor."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, features_dim=1)
        parts: dict[str, nn.Module] = {}
        size = 0
        for key, space in observation_space.spaces.items():
            is_image = getattr(space, "dtype", None) == np.uint8
            parts[key] = NatureCNN(space, 16) if is_image else nn.Flatten()
            size += 16 if is_image else _count(space)
        self.extractors = nn.ModuleDict(parts)
        self._features_dim = size

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        return torch.cat([each(observations[key]) for key, each in self.extractors.items()], dim=1)


def _count(space: Any) -> int:
    """The numbers of Stable-Baselines3's get_flattened_obs_dim."""
    if hasattr(space, "nvec"):
        return int(np.sum(space.nvec))
    return int(space.n) if hasattr(space, "n") and not space.shape else int(np.prod(space.shape))


class Linear(nn.Module):
    """One layer, without Stable-Baselines3's base class."""

    def __init__(self, observation_space: Any, size: int = 4) -> None:
        super().__init__()
        self.features_dim = size
        self.net: nn.Module = nn.Linear(observation_space.shape[0], size)

    def forward(self, observations: Tensor) -> Any:
        return self.net(observations)


class Lazy(Linear):
    """Its first batch gives the layer its size."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space)
        self.net = nn.LazyLinear(4)


class Tall(Linear):
    """Says another size than it has."""

    features_dim = 5

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space)
        self.features_dim = 5


class Normalised(Linear):
    """Normalises the batch."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space)
        self.net = nn.Sequential(self.net, nn.BatchNorm1d(4))


class Spectral(Linear):
    """Changes its buffers in each call while it is trained."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space)
        self.net = nn.utils.parametrizations.spectral_norm(self.net)


class Centred(Linear):
    """Subtracts the batch's mean."""

    def forward(self, observations: Tensor) -> Any:
        return self.net(observations) - observations.mean()


class Counting(Linear):
    """Remembers how often it was called."""

    count = 0

    def forward(self, observations: Tensor) -> Any:
        self.count += 1
        return self.count * self.net(observations)


class Overwriting(Linear):
    """Writes into the observations, of which others may have the same memory."""

    def forward(self, observations: Tensor) -> Any:
        return self.net(observations.clamp_(0, 0.1))


class Secret(Linear):
    """Has random numbers that no file keeps."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space)
        self.secret = torch.randn(4)

    def forward(self, observations: Tensor) -> Any:
        return self.net(observations) + self.secret


class Double(Linear):
    """Computes in float64."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space)
        self.net.double()

    def forward(self, observations: Tensor) -> Any:
        return self.net(observations.double()).float()


class Branching(Linear):
    """Branches in Python by the numbers of a batch, which no graph can."""

    def forward(self, observations: Tensor) -> Any:
        return self.net(observations) * (2 if observations.sum() > 1e6 else 1)


class Raising(Linear):
    """Fails when it is called."""

    def forward(self, observations: Tensor) -> Any:
        raise RuntimeError("no such layer")


class Nameless(nn.Module):
    """Does not say how many features it has."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__()
