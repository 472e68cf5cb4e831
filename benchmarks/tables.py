"""Make the tables of README.md and of pages in docs/ from the records under benchmarks/results/.

    python -m benchmarks.tables             write them between their markers
    python -m benchmarks.tables --check     say which page differs from the records; then the exit code is 1

Takes a second and measures nothing. A marker names a record, and its module has ``table(record)``:

    <!-- table: engine -->
    <!-- end -->

``speed`` is README's own choice of rows, and of several records of the engine it gives the lesser ratio. A benchmark
without a record is said to be not measured, and so is a row that its record lacks. A record whose commit is not in this
repository has no place here.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks import engine
from benchmarks.records import RESULTS, ROOT, compare_rounds, read_record

PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / f"{page}.md" for page in ("measurements", "scale")),
)
SPEED_CASES = {
    "ppo_cartpole_32": "PPO CartPole, 32 environments", "dqn_cartpole": "DQN CartPole", "sac_pendulum": "SAC Pendulum",
}  # fmt: skip
MARKER = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def fill(page: str, folder: Path = RESULTS) -> str:
    """Return the page with every table as the records make it.

    Args:
        page: Markdown with markers.
        folder: Where the records lie.

    Raises:
        ValueError: A record lacks what records have.
    """
    return MARKER.sub(lambda found: found[1] + make_table(found[2], folder) + "\n" + found[4], page)


def make_table(name: str, folder: Path = RESULTS) -> str:
    """Return what stands between the markers of a name, without a newline at its end."""
    if name == "speed":
        return make_speed_table(folder)
    record = read_record(name, folder)
    if record is None:
        return f"Not measured yet: `python -m benchmarks.{name}` does, and writes `results/{name}.json`."
    build = make_soak_table if name == "soak" else importlib.import_module(f"benchmarks.{record['benchmark']}").table
    return f"{describe(record)}\n\n{build(record)}"


def describe(record: dict[str, Any]) -> str:
    """Return one sentence on where the figures come from."""
    machine, versions = record["machine"], record["versions"]
    parts = [f"{record['date']}, {machine['cores']} cores ({machine['cpu']})"]
    parts += [", ".join(f"{name} {version}" for name, version in versions.items())] if versions else []
    parts += [f"commit {record['commit']}", f"`{record['command']}`", f"rounds: {record['rounds']}"]
    return "; ".join([*parts, *([record["note"]] if "note" in record else [])]) + "."


def make_soak_table(record: dict[str, Any]) -> str:
    """Return what each part of ``benchmarks/soak.py`` counted; that module itself takes seconds to import."""
    lines = ["| part | seconds | counted |", "|---|---|---|"]
    for part, found in record["results"].items():
        counted = [f"{name} {value}" for name, value in found.items() if name != "took_s"]
        lines.append(f"| {part} | {found['took_s']} | {', '.join(counted)} |")
    return "\n".join(lines)


def make_speed_table(folder: Path) -> str:
    """Return README.md's few rows: how many times faster rltune is than its peers.

    A record of the engine on another machine is ``engine_<machine>.json``.
    """
    measured = [read_record(path.stem, folder) for path in sorted(folder.glob("engine*.json"))]
    swept = read_record("sweep", folder)
    if not measured and swept is None:
        return "Not measured yet on equal terms: `make bench` does."
    lines = ["| rltune is so many times faster | than Stable-Baselines3 or rl_zoo3 | than RLlib or Ray Tune with it |"]
    lines.append("|---|---|---|")
    for case, words in SPEED_CASES.items():
        results = [record["results"].get(case, {}) for record in measured if record]
        speeds = [{kind: engine.speeds(rounds) for kind, rounds in each.items()} for each in results]
        lines.append(f"| {words} | {_compare(speeds, 'ours', 'sb3')} | {_compare(speeds, 'ours', 'rllib')} |")
    for size in swept["results"] if swept else ():
        walls = {kind: [each["wall_s"] for each in rounds] for kind, rounds in size["contenders"].items()}
        trials = f"a search of {size['trials']} PPO trials of {size['env_steps']:,} steps"
        lines.append(f"| {trials} | {_compare([walls], 'zoo', 'ours')} | {_compare([walls], 'plain', 'ours')} |")
        halving = _compare([walls], "zoo_halving", "ours")
        lines.append(f"| the same, where rl_zoo3 evaluates ten times and stops by halving | {halving} | |")
    return "\n".join(lines)


def _compare(records: list[dict[str, list[float]]], over: str, under: str) -> str:
    """Return the ratio of two contenders, round by round, and of several records the least."""
    ratios = [compare_rounds(values[over], values[under]) for values in records if values.keys() >= {over, under}]
    return str(min(ratios, key=lambda ratio: ratio.median)) if ratios else "not measured"


def main() -> int:
    """Write the pages, or compare them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    differ = [page for page in PAGES if fill(page.read_text()) != page.read_text()]
    for page in differ:
        if arguments.check:
            print(f"{page.name} differs from benchmarks/results/: python -m benchmarks.tables", file=sys.stderr)
        else:
            page.write_text(fill(page.read_text()))
            print(f"wrote {page.name}")
    return int(arguments.check and bool(differ))


if __name__ == "__main__":
    sys.exit(main())
