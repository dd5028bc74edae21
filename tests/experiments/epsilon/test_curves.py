"""`--curves` of every `dpmf epsilon` command: points are prices, labels say whose and what kind,
the same twice.
"""

import math
import re
from itertools import pairwise
from pathlib import Path

import pytest

from accounting import loss, pure, shuffle
from experiments.epsilon import curves as epsilon_curves
from tests.cases.epsilon import CLIPPED, EVERY, LANGEVIN, ODD, SAMPLED, STEPS, curve


def test_no_curve_shows_a_smaller_delta_than_is_priced(priced, tmp_path):
    priced("gaussian", "--steps", "1", "--sigma", "3", "--delta", ODD, "--curves", tmp_path)
    text = (tmp_path / "epsilon-steps.svg").read_text()
    assert "δ = 1.23457e-05" in text
    assert "1.23456e-05" not in text
    assert "δ of 1 step," in (tmp_path / "delta-epsilon.svg").read_text()


@pytest.mark.seconds
def test_curves_are_monotone_labelled_and_the_same_twice(priced, tmp_path):
    found = priced(*STEPS, "--curves", tmp_path / "a" / "b")
    assert sorted(found["curves"]) == sorted(map(str, (tmp_path / "a" / "b").iterdir()))
    names = {"epsilon-steps.svg", "epsilon-steps.csv", "delta-epsilon.svg", "delta-epsilon.csv"}
    assert {Path(path).name for path in found["curves"]} == names
    priced(*STEPS, "--curves", tmp_path / "c")
    for name in names:
        assert (tmp_path / "a" / "b" / name).read_bytes() == (tmp_path / "c" / name).read_bytes()
    accountants = {"basic", "closed_form", "rdp", "pld", "exact"}
    by_steps, by_delta = (
        curve(tmp_path / "c" / "epsilon-steps.csv"),
        curve(tmp_path / "c" / "delta-epsilon.csv"),
    )
    assert by_steps.keys() == {"steps", *accountants}
    assert by_delta.keys() == {"delta", *accountants}
    for name in by_steps:
        assert all(a < b for a, b in zip(by_steps[name], by_steps[name][1:], strict=False)), name
    for name in accountants:
        assert all(a > b for a, b in zip(by_delta[name], by_delta[name][1:], strict=False)), name
        here = by_steps[name][by_steps["steps"].index(300)]
        assert here == by_delta[name][by_delta["delta"].index(1e-5)] == found[name]
    for name, labels in (
        ("epsilon-steps.svg", ["number of steps J", ">ε<"]),
        ("delta-epsilon.svg", [">ε<", ">δ<"]),
    ):
        text = (tmp_path / "c" / name).read_text()
        for label in [*labels, "claimed", found["relation"], *accountants]:
            assert label in text, (name, label)


def test_a_folder_that_cannot_be_made_is_a_clear_error(refused, tmp_path):
    (tmp_path / "file").write_text("")
    told = refused("gaussian", "--steps", "3", "--sigma", "3", "--curves", tmp_path / "file" / "x")
    assert "cannot make the folder" in told


DRAWN = {
    "phases": (
        ["gaussian", "--phases", "20x1", "8x9"],
        "steps",
        {"basic", "closed_form", "rdp", "pld", "exact"},
    ),
    "sampled": ([*SAMPLED[:-1], "20"], "steps", {"rdp", "pld"}),
    "langevin": (
        [*LANGEVIN[:-1], "5", "--temperature", "1", "--decay", "9"],
        "steps",
        {"rdp", "pld"},
    ),
    "local": (["local", "--epsilon", "1", "--rounds", "3"], "reports", {"basic", "optimal"}),
    "shuffled": (
        ["local", "--epsilon", "1", "--rounds", "3", "--reports", "1000"],
        "reports",
        {"basic", "optimal", "shuffled"},
    ),
    "pure": (EVERY["pure"], "rounds", {"basic", "optimal"}),
    "objective": (EVERY["objective"], "releases", {"basic", "optimal"}),
    "statistics": (
        [
            "objective",
            "--mechanism",
            "objective-statistics",
            "--rating-bound",
            "2",
            "--epsilon",
            "1",
        ],
        "releases",
        {"basic", "closed_form", "rdp", "pld", "exact"},
    ),
    "federated": (EVERY["federated"], "iterations", {"paper", "basic", "optimal"}),
    "clipped": (
        [
            "federated",
            *CLIPPED,
            "--iterations",
            "20",
            "--scale",
            "90",
            "--noise",
            "l2-laplace",
            "--delta",
            "1e-6",
        ],
        "iterations",
        {"basic", "optimal"},
    ),
}


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("words", "counted", "accountants"),
    [
        # seven distributions, and orders for twenty prices
        pytest.param(*case, id=name, marks=pytest.mark.slow if name == "langevin" else ())
        for name, case in DRAWN.items()
    ],
)
def test_every_curve_goes_through_the_price(priced, tmp_path, words, counted, accountants):
    found = priced(*words, "--curves", tmp_path)
    assert sorted(found["curves"]) == sorted(map(str, tmp_path.iterdir()))
    by_steps, by_delta = (
        curve(tmp_path / "epsilon-steps.csv"),
        curve(tmp_path / "delta-epsilon.csv"),
    )
    steps = found.get(counted, found.get("reports_of_a_user", 1)) if counted != "reports" else 3
    delta = found["delta"] or found.get("optimal_delta") or 0.0
    assert by_delta.keys() == {"delta", *accountants}
    assert by_steps.keys() == {counted, *(accountants if delta else accountants - {"optimal"})}
    for name in by_steps.keys() - {counted}:
        here = by_steps[name][by_steps[counted].index(steps)]
        there = found["shuffled"]["epsilon"] if name == "shuffled" else found[name]
        assert here == pytest.approx(there, rel=1e-12), name
        assert all(a <= b for a, b in zip(by_steps[name], by_steps[name][1:], strict=False)), name
        assert by_steps[name][0] < by_steps[name][-1] or name == "paper"
        # δ = 0 has no price by some, so their columns begin later
        priced_at = by_delta["delta"][-len(by_delta[name]) :]
        assert by_delta[name][priced_at.index(delta)] == pytest.approx(there, rel=1e-12), name
    for name in accountants:
        assert all(a >= b for a, b in zip(by_delta[name], by_delta[name][1:], strict=False)), name
        assert by_delta[name][0] > by_delta[name][-1] or name in ("basic", "paper")
    assert by_steps[counted][0] == 1
    assert by_steps[counted][-1] == max(10, 2 * steps)
    for file in ("epsilon-steps.svg", "delta-epsilon.svg"):
        text = (tmp_path / file).read_text()
        assert f"{found['status']}, unit: one {found['unit']}" in text
        assert found["relation"] in text
        for name in (by_steps if file == "epsilon-steps.svg" else by_delta).keys() - {
            counted,
            "delta",
        }:
            kind = {
                "paper": "paper: the paper's own number",
                "shuffled": "shuffled: upper bound, behind a trusted shuffler only",
                "optimal": "optimal: exact",
                "exact": ">exact<",
            }
            assert kind.get(name, f"{name}: upper bound") in text, (file, name)
    assert f"number of {counted} " in (tmp_path / "epsilon-steps.svg").read_text()


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["pure", "--epsilon-round", "0.1"], "--rounds"),
        (["federated", *CLIPPED, "--scale", "90"], "--iterations"),
    ],
)
def test_every_point_is_what_the_command_says_of_so_many(priced, tmp_path, words, flag):
    priced(*words, flag, "4", "--curves", tmp_path)
    by_steps = curve(tmp_path / "epsilon-steps.csv")
    counted = next(iter(by_steps))
    for place in (0, len(by_steps[counted]) - 1):
        found = priced(*words, flag, int(by_steps[counted][place]))
        for name in by_steps.keys() - {counted}:
            assert by_steps[name][place] == pytest.approx(found[name], rel=1e-12), name


@pytest.mark.seconds
def test_steps_of_phases_are_counted_in_their_order(priced, tmp_path):
    priced("gaussian", "--phases", "20x2", "8x3", "--curves", tmp_path)
    by_steps = curve(tmp_path / "epsilon-steps.csv")
    for words, count in ((["20x1"], 1), (["20x2"], 2), (["20x2", "8x1"], 3), (["20x2", "8x8"], 10)):
        found = priced("gaussian", "--phases", *words)
        assert by_steps["exact"][by_steps["steps"].index(count)] == pytest.approx(
            found["exact"], rel=1e-12
        )


def test_first_steps_go_on_as_the_last_phase():
    same = loss.Gaussian(noise_multiplier=2.0, num_steps=2)
    phases = [loss.Pure(epsilon=0.3, num_rounds=3), same, same]
    first = epsilon_curves.first_steps(phases)
    assert first(5) == phases[:2]
    assert first(9) == [*phases[:2], loss.Gaussian(noise_multiplier=2.0, num_steps=4)]
    (cut,) = first(2)
    assert cut.num_rounds == 2
    assert 0.2 <= cut.epsilon <= 0.2 + 1e-12
    assert all(loss.num_steps(first(count)) == count for count in range(1, 12))


def test_delta_of_one_pure_release_is_the_known_curve(priced, tmp_path):
    whole = priced(*EVERY["objective"], "--curves", tmp_path)["basic"]
    by_delta = curve(tmp_path / "delta-epsilon.csv")
    optimal = by_delta["optimal"]
    below = [
        (d, e)
        for d, e in zip(by_delta["delta"][-len(optimal) :], optimal, strict=True)
        if 0 < e < whole * (1 - 1e-9)
    ]
    assert len(below) >= 8
    for delta, epsilon in below:
        assert (math.exp(whole) - math.exp(epsilon)) / (1 + math.exp(whole)) == pytest.approx(
            delta, rel=1e-6
        )
    assert set(by_delta["basic"]) == {whole}


def test_delta_of_pure_rounds_is_their_optimal_composition(priced, tmp_path):
    priced("pure", "--epsilon-round", "0.5", "--rounds", "20", "--curves", tmp_path)
    by_delta = curve(tmp_path / "delta-epsilon.csv")
    for delta, epsilon in zip(by_delta["delta"], by_delta["optimal"], strict=True):
        if epsilon > 0:
            assert pure.delta_optimal(0.5, 20, epsilon) == pytest.approx(delta, rel=1e-6)


@pytest.mark.seconds
def test_the_shuffled_curve_is_behind_the_shuffler(priced, tmp_path):
    priced(
        "local",
        "--epsilon",
        "1",
        "--rounds",
        "2",
        "--reports",
        "5000",
        "--delta",
        "1e-6",
        "--curves",
        tmp_path,
    )
    by_steps, by_delta = (
        curve(tmp_path / "epsilon-steps.csv"),
        curve(tmp_path / "delta-epsilon.csv"),
    )
    for count, epsilon in zip(by_steps["reports"], by_steps["shuffled"], strict=True):
        expected = shuffle.epsilon_shuffled(count / 2, int(count), num_reports=5000, delta=1e-6)
        assert epsilon == pytest.approx(expected, rel=1e-6)
    for delta, epsilon in zip(by_delta["delta"], by_delta["shuffled"], strict=True):
        if epsilon:
            expected = shuffle.epsilon_shuffled(1.0, 2, num_reports=5000, delta=delta)
            assert epsilon == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("words", [["pure", "--epsilon-round", "1e-12", "--rounds", "2000000000"]])
def test_rounds_beyond_the_sum_have_their_line(priced, tmp_path, words):
    found = priced(*words, "--curves", tmp_path)
    by_steps, by_delta = (
        curve(tmp_path / "epsilon-steps.csv"),
        curve(tmp_path / "delta-epsilon.csv"),
    )
    assert by_steps.keys() == {"rounds", "basic"}
    assert by_steps["rounds"][-1] == 4e9
    assert set(by_delta["basic"]) == {found["basic"]}


@pytest.mark.seconds
def test_a_saved_model_has_curves_and_no_guarantee_has_none(priced, refused, models, tmp_path):
    for name, columns in (
        ("proved", {"basic", "closed_form", "rdp", "pld", "exact"}),
        ("pure", {"basic", "optimal"}),
    ):
        found = priced("model", models[name], "--curves", tmp_path / name)
        by_steps = curve(tmp_path / name / "epsilon-steps.csv")
        assert by_steps.keys() == {"steps", *columns}
        for column in columns:
            assert by_steps[column][by_steps["steps"].index(found["steps"])] == pytest.approx(
                found[column], rel=1e-12
            )
        assert f"unit: one {found['unit']}" in (tmp_path / name / "delta-epsilon.svg").read_text()
    assert "there is no price to draw" in refused(
        "model", models["none"], "--curves", tmp_path / "none"
    )
    assert not (tmp_path / "none").exists()


@pytest.mark.one_case
@pytest.mark.parametrize("words", [EVERY["pure"], EVERY["local"], EVERY["federated"]])
def test_wherever_curves_are_written_the_page_names_them(dpmf, tmp_path, words):
    code, out, _ = dpmf(*words, "--curves", tmp_path)
    assert code == 0
    assert out.count("wrote ") == 4


def drawn_lines(path: Path) -> list[list[tuple[float, float]]]:
    """The lines of an svg as points on the page, y downwards; grid lines and frames have fewer
    points.
    """
    paths = re.findall(r'<path d="(M [^"]+)" clip-path', path.read_text())
    lines = [
        [tuple(map(float, pair)) for pair in re.findall(r"[ML] (\S+) (\S+)", drawn)]
        for drawn in paths
    ]
    return [line for line in lines if len(line) > 5]


@pytest.mark.seconds
def test_delta_is_drawn_upwards_against_epsilon_and_epsilon_upwards_against_steps(priced, tmp_path):
    found = priced("gaussian", "--noise-multiplier", "9", "--steps", "8", "--curves", tmp_path)
    lines = drawn_lines(tmp_path / "delta-epsilon.svg")
    assert len(lines) == len(found["kinds"])
    for line in (
        lines
    ):  # powers of ten, from 1e-12 at the bottom to 0.1: equal distances on the logarithmic axis
        heights = [before[1] - after[1] for before, after in pairwise(line)]
        assert min(heights) > 0
        assert max(heights) == pytest.approx(min(heights), rel=1e-3)
        assert all(before[0] > after[0] for before, after in pairwise(line))
    by_steps = curve(tmp_path / "epsilon-steps.csv")["steps"]
    for line in drawn_lines(tmp_path / "epsilon-steps.svg"):
        share = [(x - line[0][0]) / (line[-1][0] - line[0][0]) for x, _ in line]
        assert share == pytest.approx(
            [math.log(n) / math.log(by_steps[-1]) for n in by_steps], abs=1e-3
        )
        assert all(before[1] > after[1] for before, after in pairwise(line))
