"""Build RLlib's networks from a layout of observations: a CNN for each image, beside it all other numbers.

RLlib (2.60) asks its catalog for the encoder of an observation space, also where an LSTM follows, and knows vectors and
single images of five sizes. `RowCatalog` answers for rows with images; vectors have RLlib's perceptron as they are.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from gymnasium.spaces import Box
from ray.rllib.algorithms.bc.bc_catalog import BCCatalog
from ray.rllib.algorithms.dqn.dqn_catalog import DQNCatalog
from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
from ray.rllib.core.models.base import ENCODER_OUT, Encoder
from ray.rllib.core.models.catalog import Catalog
from ray.rllib.core.models.configs import ModelConfig
from ray.rllib.core.models.torch.base import TorchModel
from ray.rllib.core.models.torch.primitives import TorchCNN
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from torch import Tensor, nn

from rltune.config.capabilities import capabilities_of
from rltune.envs.layout import FIRST, Layout, Leaf

LAYOUT = "layout"
"""Key in RLlib's ``model_config`` for the layout of a module's observations, as JSON values."""

ENCODER = "rltune_encoder"
"""Key for the config of an encoder of the user's, in place of one that follows from the layout."""

SMALL_IMAGE = 8  # The convolutions halve an image until its shorter side is not above this.


def derive_filters(leaf: Leaf) -> list[list[int]]:
    """Derive the convolutions of an image from its size: channels, kernel and stride of each layer.

    As RLlib does for 64 x 64, each layer halves the image and has twice the filters of the last one, up to 128. RLlib's
    own for 84 x 84 cost four times as much as these.
    """
    side, filters = min(leaf.image_shape[:2]), 16
    layers = [[filters, 4, 2]] if side > SMALL_IMAGE else [[filters, 3, 1]]
    while (side := -(-side // 2)) > SMALL_IMAGE:
        filters = min(2 * filters, 128)
        layers.append([filters, 4, 2])
    return layers


class Parts:
    """Takes the leaves of an observation out of rows, which are tensors.

    Args:
        layout: That of the rows.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def read_image(self, rows: Tensor, leaf: Leaf) -> Tensor:
        """Return an image [batch, height, width, channels] as networks see it, of rows or of their view."""
        if leaf.is_bytes and rows.dtype == torch.uint8:
            flat = rows[:, leaf.begin : leaf.begin + leaf.size].to(torch.float32)
        else:
            flat = self._view_numbers(rows)[:, self._columns(rows, leaf)]
        if leaf.scale != 1:
            flat = flat / leaf.scale
        height, width, channels = leaf.image_shape
        if leaf.channels == FIRST:
            return flat.reshape(-1, channels, height, width).permute(0, 2, 3, 1)
        if leaf.num_frames > 1:
            return flat.reshape(-1, *leaf.shape).permute(0, 2, 3, 1, 4).flatten(3)
        return flat.reshape(-1, height, width, channels)

    def read_others(self, rows: Tensor) -> list[Tensor]:
        """Return all columns [batch, columns] that are of no image and no mask."""
        shift = self.layout.num_bytes if rows.dtype == torch.uint8 else 0
        numbers = self._view_numbers(rows)
        return [numbers[:, part.start - shift : part.stop - shift] for part in self.layout.other_columns]

    def _columns(self, rows: Tensor, leaf: Leaf) -> slice:
        return slice(leaf.begin, leaf.begin + leaf.size) if rows.dtype == torch.uint8 else self.layout.columns(leaf)

    def _view_numbers(self, rows: Tensor) -> Tensor:
        """Return the numbers of rows of bytes, or all columns of a view."""
        if rows.dtype != torch.uint8:
            return rows
        return rows[:, self.layout.numbers_begin :].contiguous().view(torch.float32)


@dataclass
class RowEncoderConfig(ModelConfig):
    """Describes a `RowEncoder`, as RLlib's configs describe its encoders.

    Attributes:
        layout: That of the observations.
        filters: The convolutions of each image.
        activation: That of the convolutions.
        initializers: Arguments of ``TorchCNN``: initializers of kernels and biases.
        perceptron: RLlib's config of the layers behind the images.
    """

    layout: Layout = field(default_factory=lambda: Layout([]))
    filters: Sequence[Sequence[Sequence[int]]] = ()
    activation: str | None = "relu"
    initializers: dict[str, Any] = field(default_factory=dict)
    perceptron: Any = None

    @property
    def output_dims(self) -> tuple[int, ...]:
        """The size of what the encoder gives."""
        dims: tuple[int, ...] = self.perceptron.output_dims
        return dims

    def build(self, framework: str) -> RowEncoder:
        """Build the encoder."""
        return RowEncoder(self)


class RowEncoder(TorchModel, Encoder):
    """A CNN for each image; what they give, and all other columns, go through a perceptron.

    It takes the views of rows, float32 as RLlib's connectors give them, and rows of bytes as the engine keeps them.
    """

    def __init__(self, config: RowEncoderConfig) -> None:
        TorchModel.__init__(self, config)
        Encoder.__init__(self, config)
        self.layout, self._parts = config.layout, Parts(config.layout)
        self.images = nn.ModuleList(
            TorchCNN(
                input_dims=leaf.image_shape,
                cnn_filter_specifiers=filters,
                cnn_activation=config.activation,
                **config.initializers,
            )
            for leaf, filters in zip(config.layout.images, config.filters, strict=True)
        )
        self.perceptron = config.perceptron.build(framework="torch")

    def _forward(self, inputs: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        rows = inputs["obs"]
        seen = [
            image(self._parts.read_image(rows, leaf)).flatten(1)
            for image, leaf in zip(self.images, self.layout.images, strict=True)
        ]
        features = torch.cat([*seen, *self._parts.read_others(rows)], dim=1)
        return {ENCODER_OUT: self.perceptron({"obs": features})[ENCODER_OUT]}


def _count_features(leaf: Leaf, filters: Sequence[Sequence[int]]) -> int:
    """Count what the convolutions give for an image."""
    with torch.device("meta"):
        net = TorchCNN(input_dims=leaf.image_shape, cnn_filter_specifiers=[list(layer) for layer in filters])
        return int(net(torch.empty(1, *leaf.image_shape)).numel())


class RowCatalog(Catalog):
    """Mixin for catalogs of RLlib: the encoder of rows with images follows from the layout in ``model_config``.

    An encoder of the user's may be given there, too. The layers of ``fcnet_hiddens`` follow it, and an LSTM if there is
    one.

    `_get_encoder_config` is a private name (Ray 2.60). If RLlib renames it, then a module of images cannot be built.
    """

    @classmethod
    def _get_encoder_config(cls, observation_space: Any, model_config_dict: Any, action_space: Any = None) -> Any:
        about, encoder = model_config_dict.get(LAYOUT), model_config_dict.get(ENCODER)
        make = super()._get_encoder_config
        if model_config_dict["use_lstm"]:  # RLlib asks for what comes before an LSTM by another call.
            return make(observation_space, model_config_dict, action_space)
        if encoder is not None and not model_config_dict["fcnet_hiddens"]:
            return encoder
        if encoder is not None:
            features, settings = Box(-1, 1, (encoder.num_features,)), {**model_config_dict, ENCODER: None}
            return encoder.followed_by(make(features, settings, action_space))
        if about is None:
            return make(observation_space, model_config_dict, action_space)
        layout, given = Layout.from_dict(about), model_config_dict.get("conv_filters")
        filters = [given or derive_filters(leaf) for leaf in layout.images]
        width = sum(part.stop - part.start for part in layout.other_columns)
        width += sum(_count_features(leaf, each) for leaf, each in zip(layout.images, filters, strict=True))
        perceptron = make(Box(-1, 1, (width,)), model_config_dict, action_space)
        if not layout.images:
            return perceptron
        names = ("kernel_initializer", "bias_initializer")
        initializers = {
            f"cnn_{name}{end}": model_config_dict[f"conv_{name}{of}"]
            for name in names
            for of, end in (("", ""), ("_kwargs", "_config"))
        }
        return RowEncoderConfig(
            input_dims=observation_space.shape,
            layout=layout,
            filters=filters,
            activation=model_config_dict["conv_activation"],
            initializers=initializers,
            perceptron=perceptron,
        )


class RowPPOCatalog(RowCatalog, PPOCatalog):
    """The catalog of PPO, A2C, APPO, IMPALA and MARWIL."""


class RowDQNCatalog(RowCatalog, DQNCatalog):
    """The catalog of DQN."""


class RowBCCatalog(RowCatalog, BCCatalog):
    """The catalog of BC."""


def find_catalog(config_class: type) -> Any:
    """Return the class that builds networks of images for an algorithm; None for algorithms that see vectors alone."""
    network = capabilities_of(config_class).network
    if network is None or not network.catalog:
        return None
    module, _, name = network.catalog.partition(":")
    return getattr(importlib.import_module(module), name)


def give_catalog(config: Any) -> None:
    """Let an algorithm build its networks by `find_catalog`, unless it has a spec with another catalog of ours."""
    if config._rl_module_spec is None and (catalog := find_catalog(type(config))):
        config.rl_module(rl_module_spec=RLModuleSpec(catalog_class=catalog))


def see_rows(config: Any, layout: Layout) -> None:
    """Let an algorithm's networks see images where the layout says; vectors have RLlib's own networks.

    Args:
        config: RLlib's, which is changed in place.
        layout: That of the observations.
    """
    if not (layout.images or layout.mask):
        return
    config.rl_module(model_config={**config.model_config, LAYOUT: layout.to_dict()})
    give_catalog(config)
    if layout.mask:
        spec = config._rl_module_spec
        spec.module_class = spec.module_class or _find_masked_class(config)


def _find_masked_class(config: Any) -> type | None:
    from rltune.compat.masked_modules import find_masked_class  # It imports this module.

    return find_masked_class(config)


def see_rows_of_policies(config: Any, layouts: Mapping[str, Layout]) -> None:
    """Do the same for the networks of several policies, each of which has a layout of its own."""
    rows = {name for name, layout in layouts.items() if layout.images or layout.mask}
    if not rows:
        return
    given, own = getattr(config._rl_module_spec, "catalog_class", None), find_catalog(type(config))
    specs = {
        name: RLModuleSpec(
            module_class=_find_masked_class(config) if layout.mask else None,
            catalog_class=given or (own if name in rows else None),
            model_config={**config.model_config, **({LAYOUT: layout.to_dict()} if name in rows else {})},
        )
        for name, layout in layouts.items()
    }
    config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))
