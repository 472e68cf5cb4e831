"""The report: what it says of sweeps of every kind, that it stands alone, and that a real browser draws it."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import ledger
import pytest
from composing import compose
from optuna.distributions import FloatDistribution

from rltune.config.settings_file import format_settings
from rltune.config.validation import parse_config
from rltune.reporting import analysis, sweep_data
from rltune.reporting import html as html_reporting
from rltune.reporting.html import try_report, write_report
from rltune.reporting.plotly_figures import draw_figures
from rltune.study.study import Study

CONTROL = {"name": "control", "trial": None, "params": {}, "search_score": None, "improvement": None, "optimism": None}
NUMBERS = {"mean": 80.0, "iqm": 81.0, "low": 70.0, "high": 90.0}
BEST = ((11, 97.0), (12, 101.0), (13, 99.0))
SEEDS = [{"seed": seed, "mean": mean, "returns": [mean]} for seed, mean in ((11, 79.0), (12, 83.0), (13, 81.0))]

pytestmark = pytest.mark.slow  # Optuna and Plotly draw every page anew


def certification(ties: tuple[str, ...] = ()) -> dict[str, Any]:
    """A record as the ledger has it: trial 3 and the control on three seeds."""
    best = {
        **{"name": "trial 3", "trial": 3, "params": {"lr": 1e-3}, "search_score": 120.0},
        **{"mean": 98.0, "iqm": 99.0, "low": 95.0, "high": 103.0, "improvement": 0.97, "optimism": 21.0},
        "per_seed": [{"seed": seed, "mean": mean, "returns": [mean]} for seed, mean in BEST],
    }
    rows = [best, {**CONTROL, **NUMBERS, "per_seed": SEEDS}]
    return {"seeds": [11, 12, 13], "episodes": 1, "configurations": rows, "winner": "trial 3", "ties": list(ties)}


def sweep(
    folder: Path, num_trials: int = 12, certified: dict[str, Any] | None = None, status: str = "complete"
) -> Path:
    """A finished sweep's folder: trial n learns n times as fast, and the lower half is stopped at 400 steps."""
    folder.mkdir()
    config = parse_config(
        compose("run", "budget.env_steps=1000", "~tuned", "~space", "+space.lr=[loguniform,1e-4,1e-2]")
    )
    (folder / "config.yaml").write_text(format_settings(config))
    study = Study(ledger.empty(folder), folder.name, create=True)
    searched = FloatDistribution(1e-4, 1e-2, log=True)
    for number in range(num_trials):
        lr = 10 ** (-4 + 2 * number / max(1, num_trials - 1))
        study.ask(lambda suggest: {"lr": suggest("lr", searched)}, {"lr": lr})
        study.note(number, params={"lr": lr}, seeds=[number], train_s=1.0)
        whole = number >= num_trials // 2
        for env_steps in range(200, 1001 if whole else 401, 200):
            study.report(number, env_steps, number * env_steps / 100 if env_steps > 200 else math.nan)
        study.finish(number, "COMPLETE" if whole else "PRUNED", number * 10.0, "")
    study.set_attribute("status", status)
    study.set_attribute("certification", certified)
    study.close()
    return folder


def page_of(folder: Path) -> str:
    """The page that a sweep's report is."""
    return (write_report(folder) / html_reporting.PAGE).read_text()


def figures_of(page: str) -> list[dict[str, Any]]:
    """What the page gives its script to draw."""
    return list(json.loads(re.findall(r'id="plots">(.*?)</script>', page, re.DOTALL)[0]))


def text_of(page: str) -> str:
    """What a reader sees, figures aside."""
    words = re.sub(r"<[^>]+>", " ", re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL))
    return re.sub(r"\s+", " ", html.unescape(words))


def test_a_certified_sweep_names_winner_and_control_with_intervals_and_ties(tmp_path: Path) -> None:
    said = text_of(page_of(sweep(tmp_path / "s", certified=certification(("control",)))))
    assert "Trial 3 wins with a return of 99 (95% interval 95 to 103) over 3 fresh seeds" in said
    assert "the control's is 81 (95% interval 70 to 90)" in said
    assert "with probability 0.97" in said
    assert "tie with control" in said


def test_a_control_that_is_not_beaten_is_said_to_win(tmp_path: Path) -> None:
    record = certification() | {"winner": "control"}
    said = sweep_data.verdict(sweep_data.gather(sweep(tmp_path / "s", certified=record)))
    assert said.startswith("No trial beats the control")


def test_a_trial_that_is_the_control_is_no_rival_of_it(tmp_path: Path) -> None:
    record = certification() | {"winner": "control"}
    record["configurations"][1] |= {"trial": 4}
    page = page_of(sweep(tmp_path / "s", certified=record))
    said = text_of(page)
    assert "The settings that were there before stand: nothing that the search found is better" in said
    assert "They are the values of trial 4 and return 81" in said
    assert re.search(r"<tr class=best><th>trial 4 = control</th>", page)
    assert "seeds are too few for an interval" in said


def test_failed_seeds_are_told_and_two_runs_have_no_interval(tmp_path: Path) -> None:
    record = certification()
    control = record["configurations"][1]
    control |= {"per_seed": control["per_seed"][:2], "failed_seeds": [13], "failed_score": 70.0}
    page = page_of(sweep(tmp_path / "s", certified=record))
    said = text_of(page)
    assert "the control's is 81. A run" in said
    assert "1 of 3 seeds of control failed, which counts against it." in said
    assert "A failed seed counts as the lowest return of all runs" in said
    assert "<th>control</th><td>81</td><td>-</td>" in page


def test_without_certification_the_verdict_warns_of_the_searchs_own_score(tmp_path: Path) -> None:
    said = sweep_data.verdict(sweep_data.gather(sweep(tmp_path / "s")))
    assert said.startswith("Trial 11 has the best return of 12 trials, 110.")
    assert "luckiest" in said


@pytest.mark.parametrize(("trials", "status"), [(0, "interrupted"), (1, "interrupted"), (2, "running")])
def test_a_sweep_that_hardly_began_has_a_report_too(tmp_path: Path, trials: int, status: str) -> None:
    said = text_of(page_of(sweep(tmp_path / "s", trials, status=status)))
    assert f"after {trials} of 24 trials" in said
    assert "python -m sweeps.resume sweep=s" in said


def test_best_so_far_counts_the_steps_of_all_trials_and_never_falls(tmp_path: Path) -> None:
    found = sweep_data.gather(sweep(tmp_path / "s"))
    moments = analysis.progress(found)
    bests = [moment.best for moment in moments]
    assert moments[-1].env_steps == sum(entry.env_steps for entry in found.entries) == 6 * 400 + 6 * 1000
    assert bests == sorted(bests)
    assert bests[-1] == 110


def test_importance_is_told_from_enough_trials_only(tmp_path: Path) -> None:
    shares, said = analysis.importance(sweep_data.gather(sweep(tmp_path / "many")))
    assert shares == {"lr": 1.0}
    assert "12 trials at 400 environment steps" in said
    shares, said = analysis.importance(sweep_data.gather(sweep(tmp_path / "few", 4)))
    assert not shares
    assert said == "Importance needs at least 10 trials with returns; this sweep has 4."


def test_the_winners_values_stand_beside_the_defaults(tmp_path: Path) -> None:
    (row,) = sweep_data.values(sweep_data.gather(sweep(tmp_path / "s")))
    assert (row.name, row.before, row.won, row.changed) == ("lr", "3e-4", "0.01", True)


def test_the_command_for_the_winner_alone_composes_to_its_values(tmp_path: Path) -> None:
    said = dict(sweep_data.commands(sweep_data.gather(sweep(tmp_path / "s"))))
    words = said["Train the winner's values alone"].split()[3:]
    config = parse_config(compose("run", *words))
    assert config.space["lr"] == pytest.approx(0.01)
    assert config.budget.trials == 1


Trial = tuple[str, float, list[float]]  # its state, learning rate, and reports at 200, 400, ... steps


def told(folder: Path, trials: list[Trial]) -> Path:
    """A sweep of such trials, over learning rates from 1e-4 to 1e-2."""
    sweep(folder, 0)
    study = Study(f"sqlite:///{folder / 'study.db'}", folder.name)
    for number, (state, lr, reports) in enumerate(trials):
        study.ask(lambda suggest: {"lr": suggest("lr", FloatDistribution(1e-6, 1.0, log=True))}, {"lr": lr})
        study.note(number, params={"lr": lr}, seeds=[number], train_s=1.0)
        for place, value in enumerate(reports, 1):
            study.report(number, 200 * place, value)
        study.finish(number, state, max(reports, default=0.0), "")
    study.close()
    return folder


NOTHING = "There are none before two trials have returns and differ in a parameter."
FEW, ALL = {"curves", "best", "cost"}, {"curves", "best", "cost", "slices", "parallel"}
AWKWARD: dict[str, tuple[list[Trial], set[str], str]] = {
    "one trial": ([("COMPLETE", 1e-3, [1.0, 2.0])], FEW, NOTHING),
    "nothing but failures": ([("FAIL", 1e-3, []), ("FAIL", 2e-3, [])], {"cost"}, NOTHING),
    "nan and infinity": ([("PRUNED", 1e-3, [math.nan, math.inf])] * 12, {"curves", "cost"}, "this sweep has 0"),
    "one value": ([("COMPLETE", 1e-3, [1.0 * n]) for n in range(12)], FEW, NOTHING),
    "one return": ([("COMPLETE", 1e-3 * n, [5.0]) for n in range(1, 10)] * 2, ALL, ""),
    "all stopped": (
        [("PRUNED", 1e-3, [1.0, math.nan]), ("PRUNED", 2e-3, [3.0])],
        ALL,
        "has 2",
    ),
    "outside the space": ([("COMPLETE", 0.5, [1.0]), ("COMPLETE", 1e-5, [2.0])], FEW, NOTHING),
}


@pytest.mark.parametrize(("trials", "pictures", "reason"), AWKWARD.values(), ids=AWKWARD)
def test_what_cannot_be_drawn_is_left_out_with_a_reason(
    tmp_path: Path, trials: list[Trial], pictures: set[str], reason: str
) -> None:
    page = page_of(told(tmp_path / "s", trials))
    drawn = {path.stem for path in (tmp_path / "s" / "report").glob("*.png")} - {"importance"}
    assert drawn == pictures
    assert reason in text_of(page)
    assert len(figures_of(page)) >= len(pictures)


def test_a_reader_tells_winner_stopped_and_failed_trials_apart(tmp_path: Path) -> None:
    folder = told(tmp_path / "s", [("COMPLETE", 1e-3, [1.0, 2.0]), ("PRUNED", 2e-3, [3.0]), ("FAIL", 3e-3, [4.0])])
    study = Study(f"sqlite:///{folder / 'study.db'}", folder.name)
    study.set_attribute("winner", {"trial": 0, "objective": 2.0, "params": {"lr": 1e-3}})
    study.close()
    drawn = draw_figures(sweep_data.gather(folder))
    curves = {trace.name: trace.line.color for trace in drawn["curves"][0].data}
    assert list(curves) == ["failed", "stopped early", "winner"]  # the winner is drawn last, on top
    assert len(set(curves.values())) == 3
    (points,) = drawn["slices"][0].data
    assert dict(zip((text.split("<br>")[0] for text in points.text), points.marker.color, strict=True)) == {
        f"trial {number}, {label}": curves[label] for number, label in enumerate(("winner", "stopped early", "failed"))
    }


SCALES = {
    "lr": ("[loguniform,1e-4,1e-2]", [1e-4, 1e-3, 1e-2], ["1e-4", "0.001", "0.01"]),
    "gamma": ("[one_minus_loguniform,0.001,0.1]", [0.9, 0.99, 0.999], ["0.999", "0.99", "0.9"]),
    "minibatch_size": ("[pow2,32,128]", [32, 64, 128], ["32", "64", "128"]),
    "use_lstm": ("[choice,true,false]", [True, False, True], ["true", "false"]),
    "fcnet_hiddens": ("[choice,[64,64],[256,256]]", [[64, 64], [256, 256], [64, 64]], ["[64,64]", "[256,256]"]),
}


@pytest.mark.parametrize(("name", "space", "values", "ticks"), [(n, *rest) for n, rest in SCALES.items()], ids=SCALES)
def test_an_axis_shows_a_parameters_values_as_they_are_typed(
    tmp_path: Path, name: str, space: str, values: list[Any], ticks: list[str]
) -> None:
    folder = sweep(tmp_path / "s", 0)
    (folder / "config.yaml").write_text(
        format_settings(parse_config(compose("run", "~tuned", "~space", f"+space.{name}={space}")))
    )
    searched = sweep_data.gather(folder).searched
    study = Study(f"sqlite:///{folder / 'study.db'}", folder.name)
    for number, value in enumerate(values):
        _, raw = study.ask(searched.draw, searched.encode({name: value}))
        study.note(number, params=searched.decode(raw), seeds=[number], train_s=1.0)
        study.report(number, 200, float(number))
        study.finish(number, "COMPLETE", float(number), "")
    study.close()
    (figure,) = draw_figures(sweep_data.gather(folder))["slices"]
    assert figure.layout.xaxis.title.text == name
    assert list(figure.layout.xaxis.ticktext) == ticks
    assert (write_report(folder) / "slices.png").is_file()


def test_pictures_are_written_beside_the_page(tmp_path: Path) -> None:
    folder = write_report(sweep(tmp_path / "s", certified=certification()))
    pictures = {path.stem for path in folder.glob("*.png") if path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"}
    assert pictures == {"curves", "best", "certification", "parallel", "slices", "importance", "cost"}


def test_a_report_that_fails_is_a_note_and_no_error(tmp_path: Path) -> None:
    said: list[str] = []
    assert try_report(tmp_path / "nothing", None, said.append) is None
    assert "no report could be made (StudyError" in said[0]


def test_a_name_that_looks_like_markup_stays_text(tmp_path: Path) -> None:
    folder = sweep(tmp_path / "s", 1)
    settings = (folder / "config.yaml").read_text().replace("id: CartPole-v1", "id: </script><b>x")
    (folder / "config.yaml").write_text(settings)
    assert "<b>x" not in page_of(folder)


def browser() -> str:
    """Chromium's command."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        pytest.skip("no Chromium on this machine: apt install chromium")
    return found


def test_a_browser_draws_every_figure_without_errors_or_requests(tmp_path: Path) -> None:
    chromium = browser()
    folder = write_report(sweep(tmp_path / "s", certified=certification()))
    flags = ("--headless", "--no-sandbox", "--disable-background-networking", "--enable-logging=stderr", "--dump-dom")
    flags = (*flags, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1280,900")
    page = (folder / html_reporting.PAGE).as_uri()
    done = subprocess.run([chromium, *flags, page], capture_output=True, text=True, timeout=120, check=False)
    # The page's policy forbids every request, and a browser names a forbidden one in its console.
    assert "default-src 'none'" in done.stdout
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line and "WebGL" not in line] == []
    wanted = len(figures_of(done.stdout))
    assert 'data-drawn="yes"' in done.stdout
    assert (
        wanted == len(re.findall(r'id="plot\d+" [^>]*js-plotly-plot|js-plotly-plot[^>]* id="plot\d+"', done.stdout)) > 7
    )
