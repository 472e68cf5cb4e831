"""A table with the features of each algorithm: actions, LSTM, several agents, datasets, networks.

A row is found by the dotted name of an AlgorithmConfig, or of one that it derives from, so that an algorithm of one's
own inherits the row of RLlib's. Names are strings and nothing is imported, so that a typo is answered at once. A new
algorithm of ``engine/`` is one file there, one row here, and its files in ``conf/algo`` and ``conf/space``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple


@dataclass(frozen=True)
class PolicyNetwork:
    """The attributes in which an RLModule has its policy network; they are copied to policy bundles.

    Attributes:
        module: The RLModule's class, ``module:Class``.
        encoder: The attribute with the layers that see the observation.
        head: The attribute with the layers after them.
        kind: What the head gives: a key of `rltune.policies.bundle_reader.HEADS`. If actions are discrete, then a head
            of continuous actions gives logits instead.
        value: The attribute with the value head of a dueling network.
        catalog: The class that builds its networks of images, ``module:Class``; empty if it sees vectors alone.
    """

    module: str
    encoder: str
    head: str
    kind: str
    value: str = ""
    catalog: str = ""


def _split(names: str) -> tuple[str, ...]:
    return tuple(names.split())


SECTIONS: Mapping[str, tuple[str, ...] | None] = {
    "env_runners": _split(
        "num_env_runners num_envs_per_env_runner rollout_fragment_length batch_mode explore sample_timeout_s "
        "env_runner_cls env_to_module_connector module_to_env_connector "
        "add_default_connectors_to_env_to_module_pipeline add_default_connectors_to_module_to_env_pipeline "
        "episode_lookback_horizon episodes_to_numpy max_requests_in_flight_per_env_runner "
        "merge_env_runner_states broadcast_env_runner_states use_env_runner_state_server "
        "env_runner_state_server_max_concurrency validate_env_runners_after_construction"
    ),
    "environment": _split("normalize_actions clip_actions"),
    "fault_tolerance": _split(
        "restart_failed_env_runners ignore_env_runner_failures max_num_env_runner_restarts "
        "delay_between_env_runner_restarts_s num_consecutive_env_runner_failures_tolerance "
        "env_runner_health_probe_timeout_s env_runner_restore_timeout_s restart_failed_sub_environments"
    ),
    "framework": _split(
        "torch_compile_learner torch_compile_learner_what_to_compile torch_compile_learner_dynamo_mode "
        "torch_compile_learner_dynamo_backend torch_ddp_kwargs torch_skip_nan_gradients"
    ),
    "learners": _split(
        "num_learners num_gpus_per_learner local_gpu_idx max_requests_in_flight_per_learner learner_class "
        "learner_connector add_default_connectors_to_learner_pipeline learner_config_dict"
    ),
    "multi_agent": _split("policies_to_train algorithm_config_overrides_per_module count_steps_by"),
    "offline_data": _split("input_ dataset_num_iters_per_learner"),
    "reporting": _split(
        "min_time_s_per_iteration min_train_timesteps_per_iteration min_sample_timesteps_per_iteration log_gradients"
    ),
    "rl_module": _split(
        "model_config small_policy_init encoder encoder_kwargs module_class algorithm_config_overrides_per_module"
    ),
    "training": None,
}
"""The sections of an algo file, which are methods of AlgorithmConfig, with the arguments that act on a sweep.

None stands for all that the algorithm has. rltune sets the rest of RLlib's arguments itself, as the environment and the
seed, or nobody reads them on the new API stack (Ray 2.60)."""

MODEL_SETTINGS = _split(
    "fcnet_hiddens fcnet_activation fcnet_kernel_initializer fcnet_kernel_initializer_kwargs fcnet_bias_initializer "
    "fcnet_bias_initializer_kwargs fcnet_use_layernorm conv_filters conv_activation conv_kernel_initializer "
    "conv_kernel_initializer_kwargs conv_bias_initializer conv_bias_initializer_kwargs head_fcnet_hiddens "
    "head_fcnet_activation head_fcnet_kernel_initializer head_fcnet_kernel_initializer_kwargs "
    "head_fcnet_bias_initializer head_fcnet_bias_initializer_kwargs head_fcnet_use_layernorm free_log_std "
    "log_std_clip_param vf_share_layers use_lstm max_seq_len lstm_cell_size lstm_kernel_initializer "
    "lstm_kernel_initializer_kwargs lstm_bias_initializer lstm_bias_initializer_kwargs fusionnet_hiddens "
    "fusionnet_activation fusionnet_kernel_initializer fusionnet_kernel_initializer_kwargs fusionnet_bias_initializer "
    "fusionnet_bias_initializer_kwargs"
)
"""The settings of ``rl_module.model_config`` that some algorithm reads: the fields of RLlib's DefaultModelConfig."""


class Switch(NamedTuple):
    """An argument that decides whether others are read.

    Attributes:
        path: Its section and name, joined by dots; or ``env.is_image`` or ``env.is_discrete``, which say whether
            observations are images and whether actions are discrete.
        is_on: Whether the others are read with a value of it.
        default: The value where the algo file has none, or where the environment's spaces are not known.
    """

    path: str
    is_on: Callable[[Any], bool]
    default: Any


class Unread(NamedTuple):
    """An argument that RLlib 2.60's new API stack accepts but ignores, always or with a switch off.

    These are exceptions from what `SECTIONS` and `MODEL_SETTINGS` list as read.

    Attributes:
        path: Its section and name, joined by dots.
        instead: What to use in its place, or the value that turns the switch on.
        switch: What decides whether it is read; None if it never is.
    """

    path: str
    instead: str = "leave it out"
    switch: Switch | None = None


def _list_unread(names: str, instead: str = "leave it out", switch: Switch | None = None) -> tuple[Unread, ...]:
    """Make `Unread` entries for a string of names of ``training`` arguments."""
    return tuple(Unread(f"training.{name}", instead, switch) for name in names.split())


_MODEL, _BUFFER = "rl_module.model_config", "training.replay_buffer_config"
_HAS_ENV_RUNNERS = Switch("env_runners.num_env_runners", bool, default=0)
_HAS_LEARNERS = Switch("learners.num_learners", bool, default=0)
_SEES_IMAGES = Switch("env.is_image", bool, default=True)
_HAS_LARGE_CRITICS = Switch("class", lambda name: "PlainSAC" not in str(name), default="")
_ACTS_CONTINUOUSLY = Switch("env.is_discrete", lambda is_discrete: not is_discrete, default=False)
_HAS_LSTM = Switch(f"{_MODEL}.use_lstm", bool, default=False)
_PRIORITISES = Switch(f"{_BUFFER}.type", lambda name: name != "EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer")
_HAS_NO_OTHER_BATCH = Switch("training.train_batch_size_per_learner", lambda size: size is None, default=None)
_HAS_ATOMS = Switch("training.num_atoms", lambda count: count != 1, default=1)
_HAS_NO_ATOMS = Switch("training.num_atoms", lambda count: count == 1, default=1)
_HAS_NO_ALIAS = Switch("training.num_sgd_iter", lambda count: count is None, default=None)
_HAS_CRITIC = Switch("training.use_critic", bool, default=True)


def _list_model(prefix: str, instead: str = "leave it out", switch: Switch | None = None) -> tuple[Unread, ...]:
    """Make `Unread` entries for the settings of the network whose names begin alike."""
    names = [name for name in MODEL_SETTINGS if name.startswith(prefix)]
    return tuple(Unread(f"{_MODEL}.{name}", instead, switch) for name in names)


def _list_read_with_kl(default: bool) -> tuple[Unread, ...]:
    """Make the entries of the KL loss's settings.

    Args:
        default: Whether the algorithm has this loss where the algo file does not say.
    """
    switch, on = Switch("training.use_kl_loss", bool, default), "algo.training.use_kl_loss=true"
    return _list_unread("kl_coeff kl_target", on, switch)


def _list_clipped_by(default: Any) -> tuple[Unread, ...]:
    """Make the entry of ``grad_clip_by``; ``default`` is the limit of the gradient where the algo file has none."""
    switch = Switch("training.grad_clip", lambda limit: limit is not None, default)
    return (Unread("training.grad_clip_by", "algo.training.grad_clip with a limit", switch),)


_OF_ENV_RUNNERS = (
    *(f"fault_tolerance.{name}" for name in SECTIONS["fault_tolerance"] or () if "sub_environments" not in name),
    *(
        f"env_runners.{name}"
        for name in _split(
            "sample_timeout_s max_requests_in_flight_per_env_runner merge_env_runner_states "
            "broadcast_env_runner_states use_env_runner_state_server env_runner_state_server_max_concurrency "
            "validate_env_runners_after_construction"
        )
    ),
)
_UNREAD_BY_ALL = (
    *(Unread(path, "algo.env_runners.num_env_runners above 0", _HAS_ENV_RUNNERS) for path in _OF_ENV_RUNNERS),
    Unread("learners.max_requests_in_flight_per_learner", "algo.learners.num_learners above 0", _HAS_LEARNERS),
    Unread("training.model", "the same settings in algo.rl_module.model_config"),
    Unread("training.optimizer", "algo.training.lr and grad_clip, or your own algo.learners.learner_class"),
    Unread("training.train_batch_size", "algo.training.train_batch_size_per_learner", _HAS_NO_OTHER_BATCH),
    *_list_unread("num_aggregator_actors_per_learner max_requests_in_flight_per_aggregator_actor"),
    *_list_model("lstm_", f"algo.{_MODEL}.use_lstm=true", _HAS_LSTM),
    *_list_model("max_seq_len", f"algo.{_MODEL}.use_lstm=true", _HAS_LSTM),
    *_list_model("conv_", f"algo.{_MODEL}.fcnet_hiddens: observations are no images", _SEES_IMAGES),
)
_UNREAD_IF_DISCRETE = tuple(
    Unread(f"{_MODEL}.{name}", "leave it out: actions are discrete", _ACTS_CONTINUOUSLY)
    for name in ("free_log_std", "log_std_clip_param")
)
_UNREAD_INITIALIZERS = (*_list_model("head_fcnet_kernel"), *_list_model("head_fcnet_bias"))
_UNREAD_BY_PPO_NETWORKS = (
    *_UNREAD_INITIALIZERS,
    *_list_model("fusionnet_"),
    *_UNREAD_IF_DISCRETE,
)
# RLlib still takes the former name of num_epochs, which then decides.
_UNREAD_WITH_EPOCHS = _list_unread("num_epochs", "one of the two, without algo.training.num_sgd_iter", _HAS_NO_ALIAS)
_UNREAD_BY_PPO = (
    *_UNREAD_WITH_EPOCHS,
    *_UNREAD_BY_PPO_NETWORKS,
    *_list_unread("use_gae", "algo.training.lambda_: advantages are always generalized ones, with 1.0 plain returns"),
    Unread("training.vf_share_layers", f"algo.{_MODEL}.vf_share_layers"),
    *_list_unread("vf_loss_coeff vf_clip_param", "algo.training.use_critic=true", _HAS_CRITIC),
    *_list_clipped_by(None),
)
_UNREAD_BY_SAC_NETWORKS = (
    *_UNREAD_INITIALIZERS,
    *_list_model("head_fcnet_use"),
    *_list_model("free_log_std", "leave it out: actions are squashed"),
    *_list_model("log_std_clip_param", "leave it out: actions are squashed"),
    *_list_model("fusionnet_", f"algo.{_MODEL}.fcnet_hiddens, also for the critics", _HAS_LARGE_CRITICS),
)
# A replay memory or a dataset gives each update a batch of its own, which is not split.
_UNREAD_WITHOUT_EPOCHS = (
    Unread("training.minibatch_size", "algo.training.train_batch_size_per_learner, the size of an update's batch"),
    Unread(f"{_MODEL}.vf_share_layers"),
    *_list_unread("shuffle_batch_per_epoch"),
)
_UNREAD_WITH_REPLAY = (
    *_UNREAD_WITHOUT_EPOCHS,
    *_list_unread("num_epochs num_sgd_iter", "algo.training.training_intensity, replayed steps for each sampled one"),
    *(
        Unread(f"{_BUFFER}.{name}", f"algo.{_BUFFER}.type=PrioritizedEpisodeReplayBuffer", _PRIORITISES)
        for name in ("alpha", "beta")
    ),
)
_UNREAD_WITH_DATASET = (
    *_UNREAD_WITHOUT_EPOCHS,
    *_list_unread("num_epochs num_sgd_iter", "algo.offline_data.dataset_num_iters_per_learner"),
    *_list_clipped_by(None),
)
_UNREAD_BY_IMPALA = (
    *_UNREAD_WITH_EPOCHS,
    *_UNREAD_BY_PPO_NETWORKS,
    *_list_unread("vtrace", "true: there is no other correction"),
    *_list_unread(
        "opt_type decay momentum epsilon _separate_vf_optimizer _lr_vf timeout_s_aggregator_manager "
        "learner_queue_timeout num_multi_gpu_tower_stacks replay_buffer_num_slots"
    ),
)
# APPO always uses V-trace, so it ignores the settings of GAE.
_UNREAD_BY_APPO = (*_list_unread("use_gae lambda_ target_worker_clipping"), *_list_read_with_kl(default=False))
_HEADS = f"algo.{_MODEL}.head_fcnet_hiddens"
_UNREAD_BY_DQN = (
    Unread("training.noisy", "algo.training.epsilon to explore: there are no noisy layers"),
    Unread("training.hiddens", _HEADS),
    *_list_model("free_log_std"),
    *_list_model("log_std_clip_param"),
    *_list_model("fusionnet_"),
    *_list_model("head_fcnet_use"),
    *_list_unread("sigma0 adam_epsilon categorical_distribution_temperature before_learn_on_batch"),
    *_list_unread("v_min v_max", "algo.training.num_atoms=51, a distribution over returns", _HAS_ATOMS),
    *_list_unread("td_error_loss_fn", "algo.training.num_atoms=1: a distribution has a loss of its own", _HAS_NO_ATOMS),
    *_list_unread("burn_in_len", f"algo.{_MODEL}.use_lstm=true", _HAS_LSTM),
    *_UNREAD_WITH_REPLAY,
)
_RATES = "algo.training.actor_lr, critic_lr and alpha_lr"
_UNREAD_BY_SAC = (
    Unread("training.q_model_config", "algo.rl_module.model_config"),
    Unread("training.policy_model_config", "algo.rl_module.model_config"),
    Unread("training.optimization_config", _RATES),
    Unread("training.lr", _RATES),
    *_UNREAD_BY_SAC_NETWORKS,
    *_list_unread("_use_beta_distribution _deterministic_loss"),
    *_list_clipped_by(None),
)
_REPLAY_SETTINGS = ("type", "capacity", "alpha", "beta")
# What a trial's share of the machine follows from, which is the same for all trials.
RESOURCES = ("env_runners.num_env_runners", "learners.num_learners", "learners.num_gpus_per_learner")
REPLAY_BUFFERS = ("EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer")
"""RLlib's replay buffers that store episodes of one agent, which its new API stack samples."""
# Arguments of ``training`` for which RLlib's algorithms take a schedule: [[step, value], [step, value], ...].
SCHEDULED = ("lr", "actor_lr", "critic_lr", "alpha_lr", "value_lr", "world_model_lr", "entropy_coeff", "epsilon")


# The learner statistics that are reported to trackers. RLlib has 400, most of them constants of the config.
_ONE_OPTIMIZER = ("default_optimizer_learning_rate", "gradients_default_optimizer_global_norm", "total_loss")
_V_TRACE = (*_ONE_OPTIMIZER, "curr_entropy_coeff", "entropy", "vf_loss")
_KL = ("curr_kl_coeff", "mean_kl_loss", "policy_loss")
_SOFT_ACTOR_CRITIC = ("alpha_value", "policy_loss", "qf_loss", "qf_mean", "td_error_mean", "total_loss")
_EVERY_STATISTIC = tuple(sorted({*_V_TRACE, *_KL, *_SOFT_ACTOR_CRITIC, "vf_explained_var"}))


@dataclass(frozen=True)
class Capabilities:
    """The features of an algorithm, one row of `TABLE`.

    The defaults are those of an algorithm without a row: RLlib trains it, and RLlib refuses what it cannot do.

    Attributes:
        name: Its file in ``conf/algo``; empty for an algorithm that is not known.
        engine: The class that trains it on arrays, ``module:Class``; None leaves it to stock RLlib.
        actions: Which kind of actions it can choose.
        has_parts: Whether it has a head for each part of an action. Others have one for all combinations of choices, or
            one for all numbers.
        lstm: Whether its networks may have one (Ray 2.60).
        own_encoders: Whether its networks may see observations by an extractor of the user's.
        several_agents: Whether it trains the policies of several agents.
        data: What an update learns from: ``rollouts`` of the current policy, a ``replay`` memory, or a dataset's
            ``recorded_steps`` or ``recorded_episodes``, whose advantages need the steps that follow.
        replay_ratio: The argument of ``training`` that says how many steps are replayed for each that is sampled.
        network: Where RLlib's module keeps its policy; None if only RLlib's own parts can play it.
        statistics: The learner's numbers that are reported; ``total_loss`` tells whether it diverged.
        replay_settings: The keys of ``training.replay_buffer_config`` that are read, with a replay buffer of RLlib's.
        unread: Arguments that would change nothing, or nothing with another argument as it is.
        variants: The files in ``conf/algo`` that are this algorithm with other settings.
    """

    name: str = ""
    engine: str | None = None
    actions: Literal["discrete", "continuous", "both"] = "both"
    has_parts: bool = False
    lstm: bool = True
    own_encoders: bool = False
    several_agents: bool = False
    data: Literal["rollouts", "replay", "recorded_steps", "recorded_episodes"] = "rollouts"
    replay_ratio: str | None = None
    network: PolicyNetwork | None = None
    statistics: tuple[str, ...] = _EVERY_STATISTIC
    replay_settings: tuple[str, ...] = ()
    unread: tuple[Unread, ...] = _UNREAD_BY_ALL
    variants: tuple[str, ...] = ()

    @property
    def uses_masks(self) -> bool:
        """Whether it chooses among the actions alone that an environment's mask says are legal."""
        return not self.offline and self.network is not None and self.network.kind in ("gaussian", "q")

    @property
    def joins_choices(self) -> bool:
        """Whether it chooses among all combinations of an action's choices, to which whole numbers belong then.

        Datasets have them joined.
        """
        return self.offline or (self.actions != "continuous" and not self.has_parts)

    @property
    def images(self) -> bool:
        """Whether its networks see images; unknown algorithms are asked by RLlib's own catalogs."""
        return self.network is not None and bool(self.network.catalog)

    @property
    def offline(self) -> bool:
        """Whether the algorithm learns from a recorded dataset instead of an environment."""
        return self.data.startswith("recorded")


_RLLIB = "ray.rllib.algorithms"
_CATALOGS = "rltune.compat.row_catalog"
_PPO_NETWORK = PolicyNetwork(
    f"{_RLLIB}.ppo.torch.default_ppo_torch_rl_module:DefaultPPOTorchRLModule",
    "encoder",
    "pi",
    "gaussian",
    catalog=f"{_CATALOGS}:RowPPOCatalog",
)
_SAC_NETWORK = PolicyNetwork(
    f"{_RLLIB}.sac.torch.default_sac_torch_rl_module:DefaultSACTorchRLModule", "pi_encoder", "pi", "squashed_gaussian"
)
_TQC_NETWORK = PolicyNetwork(  # TQC's module has SAC's actor but is not derived from SAC's module.
    f"{_RLLIB}.tqc.torch.default_tqc_torch_rl_module:DefaultTQCTorchRLModule", "pi_encoder", "pi", "squashed_gaussian"
)
_BC_NETWORK = PolicyNetwork(
    f"{_RLLIB}.bc.torch.default_bc_torch_rl_module:DefaultBCTorchRLModule",
    "encoder",
    "pi_head",
    "gaussian",
    catalog=f"{_CATALOGS}:RowBCCatalog",
)
_DQN_NETWORK = PolicyNetwork(
    f"{_RLLIB}.dqn.torch.default_dqn_torch_rl_module:DefaultDQNTorchRLModule",
    "encoder",
    "af",
    "q",
    value="vf",
    catalog=f"{_CATALOGS}:RowDQNCatalog",
)

TABLE: dict[str, Capabilities] = {
    f"{_RLLIB}.ppo.ppo:PPOConfig": Capabilities(
        "ppo",
        has_parts=True,
        engine="rltune.engine.on_policy.ppo:FastPPO",
        own_encoders=True,
        several_agents=True,
        network=_PPO_NETWORK,
        statistics=(*_V_TRACE, *_KL, "vf_explained_var"),
        unread=(*_UNREAD_BY_ALL, *_UNREAD_BY_PPO, *_list_read_with_kl(default=True)),
    ),
    "rltune.algorithms.a2c:A2CConfig": Capabilities(
        "a2c",
        has_parts=True,
        engine="rltune.engine.on_policy.a2c:FastA2C",
        own_encoders=True,
        several_agents=True,
        network=_PPO_NETWORK,
        statistics=(*_V_TRACE, *_KL, "vf_explained_var"),
        unread=(*_UNREAD_BY_ALL, *_UNREAD_BY_PPO, *_list_read_with_kl(default=False)),
    ),
    f"{_RLLIB}.appo.appo:APPOConfig": Capabilities(
        "appo",
        has_parts=True,
        several_agents=True,
        network=_PPO_NETWORK,
        statistics=(*_V_TRACE, *_KL),
        unread=(*_UNREAD_BY_ALL, *_UNREAD_BY_IMPALA, *_UNREAD_BY_APPO),
    ),
    f"{_RLLIB}.impala.impala:IMPALAConfig": Capabilities(
        "impala",
        has_parts=True,
        several_agents=True,
        network=_PPO_NETWORK,
        statistics=_V_TRACE,
        unread=(*_UNREAD_BY_ALL, *_UNREAD_BY_IMPALA),
    ),
    f"{_RLLIB}.dqn.dqn:DQNConfig": Capabilities(
        "dqn",
        engine="rltune.engine.off_policy.dqn:FastDQN",
        own_encoders=True,
        actions="discrete",
        data="replay",
        replay_ratio="training_intensity",
        network=_DQN_NETWORK,
        statistics=(*_ONE_OPTIMIZER, "qf_loss", "qf_mean", "td_error_mean"),
        replay_settings=_REPLAY_SETTINGS,
        unread=(*_UNREAD_BY_ALL, *_UNREAD_BY_DQN),
        variants=("rainbow",),
    ),
    f"{_RLLIB}.sac.sac:SACConfig": Capabilities(
        "sac",
        engine="rltune.engine.off_policy.sac:FastSAC",
        # Discrete actions are excluded, because RLlib's automatic target entropy for them, -1, cannot be reached.
        actions="continuous",
        lstm=False,
        data="replay",
        replay_ratio="training_intensity",
        network=_SAC_NETWORK,
        statistics=_SOFT_ACTOR_CRITIC,
        replay_settings=_REPLAY_SETTINGS,
        unread=(*_UNREAD_BY_ALL, *_UNREAD_BY_SAC, *_UNREAD_WITH_REPLAY),
    ),
    f"{_RLLIB}.tqc.tqc:TQCConfig": Capabilities(
        "tqc",
        actions="continuous",
        lstm=False,
        data="replay",
        replay_ratio="training_intensity",
        network=_TQC_NETWORK,
        statistics=_SOFT_ACTOR_CRITIC,
        replay_settings=_REPLAY_SETTINGS,
        unread=(*_UNREAD_BY_ALL, *_UNREAD_BY_SAC, *_UNREAD_WITH_REPLAY),
    ),
    f"{_RLLIB}.dreamerv3.dreamerv3:DreamerV3Config": Capabilities(
        "dreamerv3",
        lstm=False,
        data="replay",
        replay_ratio="training_ratio",
        statistics=("total_loss",),
        replay_settings=("type", "capacity"),
        unread=(
            *_UNREAD_BY_ALL,
            *(
                unread
                for unread in _list_model("", "algo.training.model_size, the size of all its networks")
                if "use_lstm" not in unread.path  # A message of its own says that it trains none.
            ),
            *_list_unread("intrinsic_rewards_scale"),
            *_list_unread("lr", "algo.training.world_model_lr, actor_lr and critic_lr"),
            *_list_unread("minibatch_size num_epochs shuffle_batch_per_epoch", "algo.training.training_ratio"),
        ),
    ),
    f"{_RLLIB}.bc.bc:BCConfig": Capabilities(
        "bc",
        lstm=False,
        data="recorded_steps",
        network=_BC_NETWORK,
        statistics=(*_ONE_OPTIMIZER, "policy_loss"),
        unread=(
            *_UNREAD_BY_ALL,
            *_UNREAD_WITH_DATASET,
            *_UNREAD_BY_PPO_NETWORKS,
            *_list_model("head_fcnet_use"),
        ),
    ),
    f"{_RLLIB}.marwil.marwil:MARWILConfig": Capabilities(
        "marwil",
        lstm=False,
        data="recorded_episodes",
        network=_PPO_NETWORK,
        statistics=(*_ONE_OPTIMIZER, "policy_loss", "vf_loss"),
        # MARWIL's policy and value may share layers.
        unread=(
            *_UNREAD_BY_ALL,
            *_UNREAD_BY_PPO_NETWORKS,
            *(unread for unread in _UNREAD_WITH_DATASET if "share" not in unread.path),
        ),
    ),
    f"{_RLLIB}.cql.cql:CQLConfig": Capabilities(
        "cql",
        actions="continuous",
        lstm=False,
        data="recorded_steps",
        network=_SAC_NETWORK,
        statistics=_SOFT_ACTOR_CRITIC,
        unread=(
            *_UNREAD_BY_ALL,
            *_UNREAD_BY_SAC,
            *_UNREAD_WITH_DATASET,
            *_list_unread("lagrangian lagrangian_thresh replay_buffer_config"),
        ),
    ),
    f"{_RLLIB}.iql.iql:IQLConfig": Capabilities(
        "iql",
        actions="continuous",
        lstm=False,
        data="recorded_steps",
        network=_SAC_NETWORK,
        statistics=("policy_loss", "qf_loss", "total_loss"),
        unread=(
            *_UNREAD_BY_ALL,
            *_UNREAD_BY_SAC_NETWORKS,
            *_UNREAD_WITH_DATASET,
            Unread("training.lr", "algo.training.actor_lr, critic_lr and value_lr"),
        ),
    ),
}
UNKNOWN = Capabilities(unread=())  # A user's algorithm may read arguments that RLlib's algorithms ignore.


def capabilities_of(config: type) -> Capabilities:
    """Return the features of an AlgorithmConfig class, inherited from the nearest class in `TABLE`; else `UNKNOWN`."""
    return next((TABLE[name] for name in _dotted_names(config) if name in TABLE), UNKNOWN)


def find_capabilities(algo: Mapping[str, Any]) -> Capabilities | None:
    """Return the features of an algo file's algorithm without importing it; None if its class has to be imported.

    RLlib's classes may be named by the package of the table's module, and a class of ours that derives from one of
    them by the file's name.
    """
    module, _, cls = str(algo["class"]).partition(":")
    for dotted, row in TABLE.items():
        its_module, _, its_cls = dotted.partition(":")
        is_named = its_cls == cls and f"{its_module}.".startswith(f"{module}.")
        if is_named or (row.name == algo["name"] and module.startswith("rltune.")):
            return row
    return None


def network_of(module: type) -> PolicyNetwork | None:
    """Return the policy network attributes of an RLModule class, inherited from the nearest known class; else None."""
    known = {row.network.module: row.network for row in TABLE.values() if row.network is not None}
    return next((known[name] for name in _dotted_names(module) if name in known), None)


def _dotted_names(cls: type) -> list[str]:
    """Return ``module:Class`` of a class and of all its parent classes, in method resolution order."""
    return [f"{base.__module__}:{base.__qualname__}" for base in cls.__mro__]


def list_algos(able: Callable[[Capabilities], Any], word: str = "or", with_variants: bool = False) -> str:
    """List the algorithms that have a feature, in words for an error: "ppo, a2c or dqn".

    Args:
        able: Says of a row whether it is listed.
        word: What joins the last two names.
        with_variants: Whether the variants of each algorithm are listed, too.
    """
    rows = filter(able, TABLE.values())
    names = [name for row in rows for name in (row.name, *(row.variants if with_variants else ()))]
    return f" {word} ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
