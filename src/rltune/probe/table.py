"""Print what a probe measured: the table, what was left out, and what to type."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.table import Table

from rltune.formatting import format_count
from rltune.probe.gpu import choose_trials
from rltune.probe.probe import ProbeResult
from rltune.probe.recommendation import choose_for_one_trial, choose_for_sweep, count, write_overrides


def print_result(probe: ProbeResult, stream: TextIO | None = None) -> None:
    """Print the table and what follows from it; it fits into 80 columns.

    Args:
        probe: What was measured.
        stream: Where to; None is standard output.
    """
    out = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
    config = probe.config
    out.print(
        f"{config.algo['name']} in {config.env.id}, engine={config.engine}, {count(probe.cpus, 'CPU')}; "
        f"{config.seconds:g} s each after warm-up"
    )
    out.print(_build_table(probe))
    failed = [f"{result.combination}: {result.failed}" for result in probe.results if result.failed]
    fallbacks = dict.fromkeys(result.fallback for result in probe.results if result.fallback)
    stock = [f"stock RLlib trains this one, because the fast engine does not serve {why}" for why in fallbacks]
    for note in (*probe.notes, *failed, *stock):
        out.print(f"note: {note}")
    for line in conclude(probe):
        out.print(line)


def _build_table(probe: ProbeResult) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("trials", "envs", "env runners", "threads", "env steps/s", "memory"):
        table.add_column(heading, justify="right")
    table.add_column("best for")
    for_trial, for_sweep = choose_for_one_trial(probe.results), choose_for_sweep(probe.results, probe.cpus)
    for result in probe.results:
        chosen = result.combination
        best = ["one trial"] * (result is for_trial) + ["a sweep"] * (result is for_sweep)
        table.add_row(
            *map(str, (result.trials, chosen.envs, chosen.env_runners, chosen.threads)),
            "failed" if result.failed else format_count(result.steps_per_s),
            "-" if result.failed else f"{result.memory_gb:.2f} GB",
            "both" if len(best) > 1 else "".join(best),
            style="bold green" if best else "",
        )
    return table


def conclude(probe: ProbeResult) -> list[str]:
    """Write the best use of the cores for one trial and for a sweep, each with the overrides to type."""
    lines: list[str] = []
    algo, cpus = probe.config.algo, probe.cpus
    one, sweep = choose_for_one_trial(probe.results), choose_for_sweep(probe.results, cpus)
    if one:
        lines += [f"one trial   {one.combination}: {one}"]
        lines += [f"            {' '.join(write_overrides(one, algo))}"]
    if sweep:
        trials = f"{count(sweep.trials, 'trial')} at {'once' if sweep.trials > 1 else 'a time'}"
        lines += [f"a sweep     {trials}, each {sweep.combination}: {sweep} together"]
        lines += [f"            {' '.join(write_overrides(sweep, algo, cpus // sweep.combination.cpus))}"]
    lines += _conclude_gpu(probe)
    own = (algo.get("env_runners") or {}).get("num_envs_per_env_runner")
    if any(best.combination.envs != own and not best.replays for best in (one, sweep) if best):
        lines.append("Speed is not learning: an update sees shorter or longer pieces of each env now. Compare returns.")
    return lines


def _conclude_gpu(probe: ProbeResult) -> list[str]:
    """Say what a trial takes of a GPU, how many share one, and whether it is faster without; nothing without a GPU."""
    use = probe.on_gpu
    without = choose_for_one_trial(result for result in probe.results if not result.combination.env_runners)
    if use is None or without is None:
        return []
    trials = choose_trials(use, probe.cpus / probe.gpus)
    speeds = f"{format_count(use.steps_per_s)} env steps/s, {format_count(without.steps_per_s)} without it"
    is_slower = use.steps_per_s < without.steps_per_s
    typed = "a trial is faster without one: resources=auto" if is_slower else f"resources.trials_per_gpu={trials}"
    return [f"a GPU       {count(trials, 'trial')} on each: {use}", f"            {speeds}", f"            {typed}"]
