"""A table of the words of other tools, each with what to type instead.

Users of Ray Tune, RLlib, Stable-Baselines3 and rl_zoo3, CleanRL, Weights & Biases and Optuna type the words that they
know. The errors about unknown words ask this table before they look for names that are spelled alike: by spelling,
``n_steps`` is close to ``num_epochs`` and ``restore`` to ``retry``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Answer(NamedTuple):
    """What rltune has for a word of another tool.

    Attributes:
        names: The names of rltune that mean the same, the closest first; a typed value goes with them. A setting is
            named in full, ``budget.trials``, or by its last part, if its section depends on the algorithm.
        note: What a user has to know, where a name alone does not say it.
        fix: What to type where the value cannot be passed on. ``{key}``, ``{name}`` and ``{value}`` stand for the key
            that was typed, for its last part and for the value.
    """

    names: tuple[str, ...] = ()
    note: str = ""
    fix: str = ""


def _rename(words: str, *names: str) -> dict[str, Answer]:
    """Make the rows of words that have other names here."""
    return dict.fromkeys(words.split(), Answer(names))


def _replace(words: str, note: str, fix: str) -> dict[str, Answer]:
    """Make the rows of words for which something else has to be typed."""
    return dict.fromkeys(words.split(), Answer((), note, fix))


_HIDDEN = "algo.rl_module.model_config.fcnet_hiddens=[64,64]"
_NO_POPULATION = (
    "no population-based training; the nearest are schedules that all trials share, "
    "space.lr=[[0,1e-3],[100000,1e-5]], and searcher.from_sweeps, which goes on from earlier sweeps"
)
_OWN_CONFIG = "an AlgorithmConfig of your own as algo.class, which sets it itself; see docs/algorithms.md"

# What is typed as a setting, by itself or in any section; one with dots is meant in its own section alone.
_SETTINGS = {
    # Ray Tune.
    **_rename("num_samples n_trials max_trials max_total_trials run_cap count", "budget.trials"),
    **_rename("max_concurrent_trials max_concurrent n_jobs num_workers_tune", "resources.max_concurrent"),
    **_rename("time_budget_s timeout total_time_s max_time_s", "budget.wall_time_s"),
    **_rename("storage_path local_dir log_dir log_folder save_dir", "output_dir"),
    **_rename("max_failures", "failures.max_retries"),
    **_rename("points_to_evaluate enqueue_trial initial_points", "warm_start"),
    **_rename("search_alg sampler method search_algorithm", "searcher"),
    **_rename("pruner early_terminate trial_scheduler", "scheduler"),
    **_rename("param_space parameters search_space hyperparameters", "space"),
    **_rename("mode goal", "objective.direction"),
    **_rename("num_cpus cpus_per_worker num_cpus_for_main_process", "resources.cpus_per_trial"),
    **_rename("num_gpus gpus num_gpus_per_worker num_gpus_per_env_runner num_learner_gpus", "resources.gpus_per_trial"),
    **_rename("run_name exp_name study_name sweep_name trial_name", "name"),
    **_rename("experiment_name project wandb_project_name project_name", "tracking.experiment"),
    **_rename("tracking_uri mlflow_tracking_uri", "tracking.uri"),
    **_replace("load_if_exists", "auto: the same command continues the sweep of this name", "name=mine resume=auto"),
    **_replace(
        "stop",
        "a trial ends after budget.env_steps, once its score holds budget.target, after budget.plateau reports without "
        "a better score, or when the scheduler stops it",
        "budget.target=475",
    ),
    # Of a mapping, its first entry is looked up.
    **_rename(
        "stop.episode_return_mean stop.episode_reward_mean stop.score stop.mean_reward stop_reward stop_value "
        "reward_threshold return_threshold target_reward target_return target_score",
        "budget.target",
    ),
    **_rename("patience early_stopping_patience max_no_improvement_evals num_results_without_improvement", "plateau"),
    **_rename(
        "stop.timesteps_total stop.num_env_steps_sampled_lifetime stop.num_env_steps_sampled stop_timesteps",
        "budget.env_steps",
    ),
    **_replace(
        "stop.training_iteration stop_iters max_iterations",
        "environment steps, of which an iteration has as many as its batch",
        "budget.env_steps=100000",
    ),
    **_replace("stop.time_total_s", "seconds of the whole sweep", "budget.wall_time_s=3600"),
    **_replace(
        "metric episode_reward_mean",
        "return, the mean of whole episodes, which is the default; info takes a value of an episode's last info",
        "objective.kind=return",
    ),
    **_replace(
        "info_keywords custom_metrics episode_metrics",
        "keys of the infos, each with how an episode's values become one number",
        "metrics=[is_success]",
    ),
    **_replace("time_attr", "nothing: all trials report at the same environment steps", "leave {key} out"),
    **_replace("fail_fast raise_on_failed_trial", "how many failures in a row end a sweep", "failures.stop_after=1"),
    **_replace(
        "checkpoint_frequency checkpoint_freq save_freq checkpoint_at_end checkpoint_config save_interval",
        "seconds between checkpoints of a trial; its best state is saved whenever it improves",
        "checkpoint.every_s=30",
    ),
    **_replace(
        "num_to_keep keep_checkpoints_num checkpoint_score_attribute checkpoint_score_order",
        "nothing: of each trial the best and the latest checkpoint are kept",
        "leave {key} out",
    ),
    **_replace("restore restore_path checkpoint_path", "a command of its own", "rltune resume sweep=latest"),
    **_replace(
        "sweep_id trial_id",
        "a command of its own for a sweep that exists, and its name",
        "rltune resume sweep=latest",
    ),
    **_replace("resume_from", "a command of its own", "rltune resume sweep=latest"),
    **_replace("trained_agent load_model", "a command of its own", "rltune evaluate policy=sweep:latest"),
    **_replace("resources_per_trial trial_resources", "CPUs and GPUs one by one", "resources.cpus_per_trial=1"),
    **_replace("reuse_actors", "nothing: each trial has a process of its own", "leave {key} out"),
    **_replace(
        "verbose verbosity log_level progress_reporter progress progress_bar",
        "nothing: sweep.log has all lines; see docs/running.md",
        "leave {key} out",
    ),
    **_replace(
        "callbacks callbacks_class callback",
        f"a tracker of your own, metrics in infos, or {_OWN_CONFIG}",
        "metrics=[is_success]",
    ),
    # Schedulers of Ray Tune and pruners of Optuna.
    **_replace(
        "grace_period min_resource min_iter n_warmup_steps min_early_stopping_rate",
        "a fraction of budget.env_steps",
        "scheduler.args.grace_fraction=0.2",
    ),
    **_rename("max_t max_resource max_iter", "budget.env_steps"),
    **_rename("eta brackets_factor", "reduction_factor"),
    **_replace("brackets", "of Hyperband alone", "scheduler=hyperband scheduler.args.num_brackets=2"),
    **_replace("min_samples_required", "of the median rule alone", "scheduler=median scheduler.args.min_trials=5"),
    **_replace(
        "perturbation_interval hyperparam_mutations hyperparam_bounds quantile_fraction resample_probability "
        "population_size",
        _NO_POPULATION,
        "scheduler=asha",
    ),
    # RLlib, today's and earlier.
    **dict.fromkeys(
        ("env_config", "env_kwargs", "env_args"),
        Answer(("env.kwargs",), "the environment's arguments, for training and evaluations alike"),
    ),
    **_rename("env_id gym_id environment.env", "env.id"),
    **_rename("environment", "env"),
    **_rename("algorithm algorithm_class run_or_experiment trainable", "algo"),
    **_rename("gym_env_vectorize_mode vec_env vec_env_type vectorize_mode", "env.vectorize"),
    **_rename("env_wrapper wrapper_class", "env.wrappers"),
    **_rename("num_workers num_rollout_workers", "num_env_runners"),
    **_rename("num_envs_per_worker n_envs num_envs", "num_envs_per_env_runner"),
    **_rename("train_batch_size", "train_batch_size_per_learner"),
    **_rename("sgd_minibatch_size num_minibatches", "minibatch_size"),
    **_rename("num_sgd_iter n_epochs update_epochs", "num_epochs"),
    **_rename("lr_schedule learning_rate learning_rate_schedule", "lr", "actor_lr"),
    **_rename("entropy_coeff_schedule ent_coef", "entropy_coeff", "entropy_scale"),
    **_rename("lambda gae_lambda", "lambda_"),
    **_replace(
        "policies policy_mapping_fn",
        "shared, separate, or a mapping of agents to policies in the environment's file; see docs/environments.md",
        "env=simple_spread env.policies=separate",
    ),
    **_replace("model model_config_dict", "the network's settings one by one", _HIDDEN),
    **_replace(
        "custom_model rl_module_spec module_class _torch_lr_scheduler_classes _torch_grad_scaler_class",
        _OWN_CONFIG,
        "see docs/algorithms.md, 'Add an algorithm'",
    ),
    **_replace(
        "evaluation evaluation_interval evaluation_duration evaluation_num_env_runners evaluation_num_workers "
        "evaluation_config evaluation_parallel_to_training eval_freq n_eval_episodes eval_episodes "
        "custom_evaluation_function",
        "episodes of the best trials after the search; `rltune evaluate` plays a policy in any environment",
        "certify.episodes=50",
    ),
    **_replace(
        "horizon max_episode_steps",
        "a time limit in a wrapper, or the environment's own",
        "'env.wrappers=[{{entry_point: gymnasium.wrappers:TimeLimit, kwargs: {{max_episode_steps: 1000}}}}]'",
    ),
    **_replace("observation_filter", "running mean and deviation", "algo.normalise=[observations]"),
    **_replace("clip_rewards", "the largest size of a reward in training", "env.rewards.clip=1.0"),
    **_replace(
        "exploration_config exploration_fraction exploration_final_eps",
        "DQN's, a schedule",
        "algo=dqn algo.training.epsilon=[[0,1.0],[10000,0.05]]",
    ),
    **_replace("framework", "torch, always", "leave {key} out"),
    # Stable-Baselines3, rl_zoo3 and CleanRL.
    **_rename("n_timesteps total_timesteps timesteps_total max_steps", "budget.env_steps"),
    **_rename("n_evaluations", "budget.reports"),
    **_rename("n_steps num_steps", "train_batch_size_per_learner", "n_step", "rollout_fragment_length"),
    **_rename("batch_size", "minibatch_size", "train_batch_size_per_learner"),
    **_rename("clip_range clip_coef", "clip_param"),
    **_rename("vf_coef", "vf_loss_coeff"),
    **_rename("max_grad_norm", "grad_clip"),
    **_replace(
        "target_kl", "a penalty, with its target", "algo.training.use_kl_loss=true algo.training.kl_target=0.01"
    ),
    **_rename("buffer_size", "capacity"),
    **_rename("learning_starts", "num_steps_sampled_before_learning_starts"),
    **_rename("train_freq train_frequency", "rollout_fragment_length"),
    **_rename("gradient_steps", "training_intensity"),
    **_rename("target_update_interval target_network_frequency", "target_network_update_freq"),
    **_rename("net_arch hidden_sizes hidden_dims", "fcnet_hiddens"),
    **_rename("activation_fn activation", "fcnet_activation"),
    **_rename("normalize", "normalise"),
    **_replace("normalize_observations normalise_observations norm_obs", "a list", "algo.normalise=[observations]"),
    **_replace("normalize_rewards norm_reward env.rewards.normalise", "a list", "algo.normalise=[rewards]"),
    **_replace("policy_kwargs", "the network's settings one by one", _HIDDEN),
    **_replace(
        "features_extractor_class features_extractor features_extractor_kwargs",
        "the class as it is, by its module and its name",
        "algo.rl_module.encoder=my_nets:Extractor",
    ),
    **_replace("encoder encoder_kwargs", "ppo, a2c and dqn, which train an encoder of yours", "algo=ppo"),
    **_replace("ortho_init", "a policy whose last layer begins small", "algo.rl_module.small_policy_init=true"),
    **_replace("anneal_lr", "a schedule of [step, value] pairs", "space.lr=[[0,1e-3],[100000,1e-5]]"),
    **_replace("device cuda", "GPUs, or fractions of one, for each trial", "resources.gpus_per_trial=1"),
    **_replace("tensorboard_log", "trackers", "tracking.kinds=[mlflow,tensorboard]"),
    **_replace("track wandb use_wandb", "trackers", "tracking=wandb"),
    **_replace("entity wandb_entity", "W&B reads it from the variable WANDB_ENTITY", "tracking=wandb"),
    **_replace(
        "capture_video video record_video", "a command of its own", "rltune evaluate policy=sweep:latest video=true"
    ),
    **_replace("n_seeds num_seeds seeds repeat", "seeds for each trial", "replicates=3"),
    # Optuna and W&B.
    **_rename("direction directions", "objective.direction"),
    **_rename("n_startup_trials", "searcher.args.n_startup_trials"),
    **_rename("command program", "algo"),
}

# What is typed as the value of a setting that takes one of several words.
_VALUES = {
    **_rename("true must allow yes on", "auto", "on"),
    **_rename("false none no off", "never", "off", "none"),
    **_rename("maximize maximise higher", "max"),
    **_rename("minimize minimise lower", "min"),
    **_rename("reward episode_reward_mean episode_return_mean mean_reward score", "return"),
    **_rename("bf16 mixed half", "bfloat16"),
    **_rename("fp32 float single", "float32"),
    **_rename("torch ray stock", "rllib"),
    **_rename("numba native jit", "fast"),
    **_rename("dummy dummyvecenv serial", "sync"),
    **_rename("subproc subprocvecenv subprocess", "async"),
    **_rename("tb", "tensorboard"),
}

# What is typed as the name of an option of a group.
_ALGOS = {
    **_rename("td3 twindelayedddpg droq crossq redq", "tqc", "sac"),
    **_rename("ddpg apexddpg", "sac"),
    **_rename("trpo recurrentppo ppolstm maskableppo ppg npg reinforce pg vpg es ars", "ppo"),
    **_rename("a3c", "a2c"),
    **_rename("qrdqn c51 iqn apex apexdqn", "rainbow", "dqn"),
    **_rename("doubledqn duelingdqn ddqn r2d2 qlearning", "dqn"),
    **_rename("dreamer dreamerv2", "dreamerv3"),
    **_rename("crr awr", "marwil"),
    **_rename("gail", "bc"),
}
_SEARCHERS = {
    **_rename("optuna hyperopt bohb tunebohb hebo tpesampler motpe", "tpe"),
    **_rename("bayes bayesopt ax bo botorch skopt gpsampler dragonfly", "gp"),
    **_rename("smac randomforest flaml blendsearch cfo", "rf"),
    **_rename("basicvariant basicvariantgenerator variantgenerator randomsampler zoopt", "random"),
    **_rename("gridsearch gridsampler bruteforce", "grid"),
    **_rename("cma cmaessampler nevergrad evolution", "cmaes"),
    **_rename("sobol halton quasirandom qmcsampler", "qmc"),
    **_replace(
        "nsga2 nsgaii nsgaiisampler",
        "any sampler of Optuna by its class",
        "searcher=random searcher.kind=optuna.samplers:NSGAIISampler",
    ),
}
_SCHEDULERS = {
    **_replace("pbt pb2 pbtreplay populationbasedtraining", _NO_POPULATION, "scheduler=asha"),
    **_rename("halving successivehalving sha asynchyperband ashascheduler successivehalvingpruner", "asha"),
    **_rename("bohb hb hyperbandforbohb hyperbandpruner", "hyperband"),
    **_rename("medianstopping medianstoppingrule medianpruner percentile", "median"),
    **_rename("fifo nop noppruner off null", "none"),
}
_TRACKING = {
    **_rename("mlflow on", "local"),
    **_rename("none null false", "off"),
    **_rename("wb weightsandbiases", "wandb"),
    **_replace("tensorboard tb", "several trackers", "tracking.kinds=[mlflow,tensorboard]"),
    **_replace(
        "aim comet neptune clearml csv",
        "local, off, server, wandb, or a tracker of your own as package.module:Class in tracking.kinds; "
        "see docs/tracking.md",
        "tracking=local",
    ),
}
_RESOURCES = {
    **_replace("gpu cuda", "a GPU, or a fraction of one, for each trial", "resources.gpus_per_trial=1"),
}

# What is typed as the kind of a range.
_KINDS = {
    **_rename(
        "log_uniform log_uniform_values suggest_loguniform reciprocal qloguniform q_log_uniform_values", "loguniform"
    ),
    **_rename("float suggest_float suggest_uniform real normal randn qrandn truncated_normal", "uniform"),
    **_rename("int integer int_uniform suggest_int qrandint q_int_uniform", "randint"),
    **_rename("qlograndint loginteger", "lograndint"),
    **_rename("q_uniform suggest_discrete_uniform", "quniform"),
    **_rename("categorical values suggest_categorical one_of sample", "choice"),
    **_replace("grid_search", "choices; with searcher=grid, all are tried", "space.{name}=[choice,{value}]"),
    **_replace(
        "sample_from lambda",
        "ranges, whose ends may name other parameters, and choices; a condition is [when, {other: value}, range], see "
        "docs/search-spaces.md",
        "space.{name}=[uniform,0.1,1]",
    ),
}

# What is typed as a command.
_COMMANDS = {
    **_rename("restore continue extend", "resume"),
    **_rename("train tune optimize optimise fit start launch sweep search exec agent", "run"),
    **_rename("enjoy eval test play rollout predict render video film", "evaluate"),
    **_rename("ls status ps sweeps queue history", "list"),
    **_rename("cancel kill abort pause", "stop"),
    **_rename("info describe best results inspect", "show"),
    **_rename("log", "logs"),
    **_rename("tail follow attach top", "watch"),
    **_rename("plot plots html", "report"),
    **_rename("diff leaderboard", "compare"),
    **_rename("onnx save convert", "export"),
    **_rename("benchmark bench profile", "probe"),
    **_rename("server ui dashboard service", "serve"),
    **_rename("collect dataset", "record"),
    **_rename("add try suggest ask", "enqueue"),
    **_rename("queue_up post", "submit"),
}

# What is typed as a setting of Hydra, without ``hydra.`` or ``hydra/``.
_HYDRA = {
    **_rename("run.dir sweep.dir sweep.subdir output_subdir runtime.output_dir", "output_dir"),
    **_rename("job.name", "name"),
    **_replace(
        "launcher sweeper", "-m alone: its sweeps run one after the other, each on the whole machine", "leave {key} out"
    ),
    **_replace("job.chdir", "nothing: the working folder stays the one where the command was typed", "leave {key} out"),
}

WORDS: Mapping[str, Mapping[str, Answer]] = {
    "setting": _SETTINGS,
    "value": _VALUES,
    "algo": _ALGOS,
    "searcher": _SEARCHERS,
    "scheduler": _SCHEDULERS,
    "tracking": _TRACKING,
    "resources": _RESOURCES,
    "kind": _KINDS,
    "command": _COMMANDS,
    "hydra": _HYDRA,
}
"""The rows by the place where a word is typed."""

_CLASS_ENDS = {"scheduler": "(scheduler|pruner)$", "searcher": "(search|searcher|sampler)$"}


def find_answer(place: str, word: str) -> Answer | None:
    """Find what rltune has for a word of another tool; None if the table has no such word.

    Capitals, dashes and underscores make no difference, nor does what other tools' classes of a group end with:
    ``OptunaSearch`` is ``optuna``.

    Args:
        place: Where it was typed: a key of `WORDS`, or the name of any other config group.
        word: What was typed.
    """
    spelled = {_fold(word), re.sub(_CLASS_ENDS.get(place, "$"), "", _fold(word))}
    return next((answer for row, answer in WORDS.get(place, {}).items() if _fold(row) in spelled), None)


def list_names(word: str) -> Iterator[str]:
    """List the names that a word of another tool may have here, wherever it is typed, the closest first."""
    for place in WORDS:
        if answer := find_answer(place, word):
            yield from answer.names


def _fold(word: str) -> str:
    return re.sub(r"[-_ ]", "", word.casefold())
