"""Paper 004 reproduced: stored runs, controls that say nothing, rows held to the slides, claims
that can fail.
"""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest

from dpmf_jax import layout, protocol
from dpmf_jax.errors import DataError, UsageError
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.noise import keys
from experiments.reproduce import page as shared
from experiments.reproduce.paper import Bench
from experiments.reproduce.paper004 import (
    claims,
    difference,
    figures,
    measurements,
    page,
    paper,
    report,
    runs,
    table,
)
from tests.cases import reproduce as cases

pytestmark = pytest.mark.usefixtures("quick_compilation")

FIG9 = table.FIGURES["004/fig9"]
CONFIG = local.Config(
    epsilon=1.0, num_rounds=3, rank=3, num_projected=2, center=3.0, learning_rate=0.1
)


@pytest.fixture(scope="module")
def data():
    return runs.Data(cases.generated(), num_devices=1)


def run_of(variant, **change):
    config = dataclasses.replace(CONFIG, **change)
    return runs.Run(variant, config, 0, (1, 3))


def after(variant, ratings, rounds=3):
    made, laid = (
        runs.mechanism(variant, CONFIG, ratings.num_items),
        layout.make(ratings, num_devices=1),
    )
    init_key, train_key = jax.random.split(keys.from_seed(0))
    start = protocol.begin(made, init_key, laid)
    return start, protocol.train(made, train_key, start, laid, rounds)[0]


@pytest.mark.seconds
def test_fair_coins_and_users_alone_make_nothing_public_of_any_rating():
    ratings = cases.generated()
    other = dataclasses.replace(ratings, value=6 - ratings.value)
    for variant, told in (
        ("fair-coins", False),
        ("users-alone", False),
        ("gd-dr", True),
        ("non-private", True),
    ):
        here, there = after(variant, ratings)[1].public, after(variant, other)[1].public
        same = np.array_equal(here.item_factors, there.item_factors)
        assert same is not told, variant


@pytest.mark.seconds
def test_users_alone_move_and_the_items_do_not():
    start, end = after("users-alone", cases.generated())
    assert np.array_equal(start.public.item_factors, end.public.item_factors)
    assert not np.allclose(start.private.user_factors, end.private.user_factors)
    _, coins = after("fair-coins", cases.generated())
    assert not np.allclose(start.public.item_factors, coins.public.item_factors)


@pytest.mark.seconds
def test_a_run_is_measured_as_a_fit_is_and_stored(data, tmp_path):
    """Errors after one round and after three, by hand; a second call trains nothing and finds the
    same.
    """
    told = []
    found = runs.measure(run_of("gd-dr"), data, tmp_path, told.append)
    made = local.gd_dr(CONFIG)
    init_key, train_key = jax.random.split(keys.from_seed(0))
    state = protocol.begin(made, init_key, data.layout)
    for rounds in (1, 3):
        end, _ = protocol.train(made, train_key, state, data.layout, rounds)
        users, items = (
            np.asarray(part, np.float64)
            for part in (end.private.user_factors, end.public.item_factors)
        )
        for part, ratings in (("train", data.train), ("test", data.test), ("clipped", data.test)):
            predicted = 3.0 + np.sum(users[ratings.user] * items[ratings.item], axis=1)
            predicted = np.clip(predicted, 1, 5) if part == "clipped" else predicted
            rmse = math.sqrt(np.mean((predicted - ratings.value) ** 2))
            assert getattr(found, part)[rounds] == pytest.approx(rmse, rel=1e-5)
    assert len(told) == 1
    again = runs.measure(run_of("gd-dr"), data, tmp_path, told.append)
    assert (again, len(told)) == (found, 1)
    runs.measure(run_of("gd-dr", epsilon=2.0), data, tmp_path, told.append)
    assert len(told) == 2
    assert all(path.parent.name == "private" for path in tmp_path.rglob("*.json"))


def test_a_run_that_diverges_says_so_and_is_stored_as_that(data, tmp_path):
    wild = run_of("non-private", learning_rate=1e6)._replace(at=(1, 30))
    found = runs.measure(wild, data, tmp_path)
    assert found.train[30] == math.inf
    assert found.test[30] == math.inf
    assert runs.measure(wild, data, tmp_path) == found


def test_the_search_looks_at_generated_ratings_alone_and_takes_the_lowest(
    data, tmp_path, monkeypatch
):
    monkeypatch.setattr(runs, "RATES", (1e-3, 0.5, 1e6))
    found = runs.search("non-private", CONFIG, 30, data, tmp_path, lambda text: None)
    assert found.learning_rate == min(found.tried, key=lambda rate: found.tried[rate]) == 0.5
    assert found.tried[1e6] == math.inf
    made = {
        json.loads(path.read_text())["settings"]["ratings"] for path in tmp_path.rglob("*.json")
    }
    assert made == {data.generated.digest}
    assert data.generated.digest != data.digest
    sizes = (data.train.num_users, data.train.num_items, data.train.num_ratings)
    generated = data.generated.train
    assert (generated.num_users, generated.num_items, generated.num_ratings) == sizes


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(runs, "RATES", (0.01, 0.1))
    for module in (table, measurements):
        monkeypatch.setattr(module, "ROUNDS", (1, 3))
    monkeypatch.setattr(paper, "SEEDS", (0,))


@pytest.mark.seconds
def test_figure_9_is_held_to_the_slides_on_their_ratings_alone(data, tmp_path, quick):
    """On ml-20m every value is outside 5%, or inside; elsewhere nothing is decided."""
    bench = Bench(data, tmp_path, (0,), lambda text: None)
    own = figures.over_rounds(bench)
    assert {row.result for row in own.rows} == {"informative"}
    assert any("no number is compared" in note for note in own.notes)
    theirs = runs.Data(dataclasses.replace(data.ratings, name="ml-20m"), num_devices=1)
    theirs.train = dataclasses.replace(theirs.train, name="ml-20m")
    held = figures.over_rounds(bench._replace(data=theirs))
    checked = [row for row in held.rows if row.result != "informative"]
    assert {(row.series, row.x) for row in checked} == {
        (series, x)
        for series in ("private, seen during 50 rounds", "non-private")
        for x in (1.0, 3.0)
    }
    for row in checked:
        kind = "non-private" if row.series == "non-private" else "private"
        assert row.paper == table.PAPER[kind][round(row.x)]
        assert (row.result == "inside") == (abs(row.value - row.paper) <= 0.05 * row.paper + 1e-12)
    told = shared.summary(FIG9, held, theirs.train, command="x", commit="c", device="d")
    assert told["checked"] == 4
    assert "| private, seen during 50 rounds | 1 |" in "\n".join(
        report.section(FIG9, told, "x.svg")
    )


def test_q_is_the_slides_share_of_the_items():
    assert figures.projected(26_744) == 2_700
    assert figures.projected(3_706) == 374
    assert figures.projected(5) == 1


@pytest.mark.seconds
def test_the_command_writes_rows_pictures_and_a_page_and_trains_once(
    tmp_path, quick, capsys, monkeypatch
):
    folder = cases.rating_file(tmp_path / "data")
    words = (
        "004/fig9",
        "004/claims",
        "--data-dir",
        str(folder),
        "--out",
        str(tmp_path / "out"),
        "--devices",
        "1",
    )
    words += ("--docs", str(tmp_path / "docs"), "--json", "--seeds", "0")
    assert cases.command_line(*words) == 0
    said = json.loads(capsys.readouterr().out)
    (figure,) = said["figures"]
    assert figure["ratings"]["name"].startswith("ml-1m")
    made = {
        path: path.read_bytes()
        for top in ("out/004-fig9", "docs")
        for path in (tmp_path / top).rglob("*.*")
    }
    names = {path.name for path in made}
    assert {"004-fig9-ml-1m.csv", "004-fig9-ml-1m.json", "004-fig9-ml-1m.svg", "004.md"} <= names
    for path in made:
        assert str(tmp_path) not in path.read_text()
    assert said["local_claims"]["counts"]["reproduced"] >= 1
    monkeypatch.setattr(runs, "_train", lambda *_: pytest.fail("it trained again"))
    assert cases.command_line(*words) == 0
    assert {path: path.read_bytes() for path in made} == made


def test_refusals(tmp_path, capsys):
    assert cases.command_line("004/fig10", "--out", str(tmp_path)) == 2
    assert "004/fig9" in capsys.readouterr().err
    assert cases.command_line("004/fig9", "--ranks", "4", "--out", str(tmp_path)) == 2
    assert "paper 001" in capsys.readouterr().err
    assert (
        cases.command_line("004/fig9", "--data-dir", str(tmp_path), "--out", str(tmp_path / "o"))
        == 3
    )
    assert "dpmf data list" in capsys.readouterr().err
    with pytest.raises(UsageError, match="no figure"):
        table.CATALOGUE.expand(["004/nothing"])


def row(series, x, value, axis="rmse"):
    return {"series": series, "axis": axis, "x": float(x), "value": value}


def fig9(**change):
    lines = {
        "private, seen during 50 rounds": (3.0, 2.0, 1.8, 1.5, 1.4, 1.3),
        "private, k rounds in all": (1.3, 1.4, 1.5, 1.6, 1.7, 1.8),
        "fair coins in place of reports": (3.0, 2.0, 1.8, 1.5, 1.4, 1.3),
        "users alone": (1.2,) * 6,
        "non-private": (1.2, 1.19, 1.18, 1.17, 1.16, 1.15),
    } | change
    rows = [
        row(name, t, v)
        for name, line in lines.items()
        for t, v in zip(table.ROUNDS, line, strict=True)
    ]
    return {
        "004-fig9-ml-1m": {
            "figure": "004/fig9",
            "ratings": {"name": "ml-1m"},
            "rows": rows,
            "settings": [],
        }
    }


def verdicts(found):
    return {claim.name: claim.verdict for claim in claims.judge(found)}


@pytest.mark.seconds
def test_every_claim_on_figure_9_can_go_either_way():
    found = verdicts(fig9())
    assert found["falls, during a run"] == "reproduced"
    assert found["falls, over k"] == "not reproduced"
    assert found["non-private below"] == "reproduced"
    assert found["reports teach"] == "not reproduced"
    turned = verdicts(
        fig9(
            **{
                "private, seen during 50 rounds": (3.0, 2.0, 2.1, 1.5, 1.4, 1.1),
                "private, k rounds in all": (1.8, 1.7, 1.6, 1.5, 1.4, 1.3),
            }
        )
    )
    assert turned["falls, during a run"] == "not reproduced"
    assert turned["falls, over k"] == "reproduced"
    assert turned["non-private below"] == "not reproduced"
    assert turned["reports teach"] == "reproduced"


def test_a_run_that_diverged_does_not_fall():
    line = (3.0, 2.0, 1.8, 1.5, 1.4, "inf")
    assert (
        verdicts(fig9(**{"private, seen during 50 rounds": line}))["falls, during a run"]
        == "not reproduced"
    )


def test_exponents_are_held_to_the_theorem():
    def stored_rows(exponent):
        rows = [row("GD, over users", n, 3 * n**exponent, "error") for n in (1e3, 4e3, 1.6e4)]
        rows += [row("GD-DR, over users", n, 3 * n**exponent, "error") for n in (1e3, 4e3, 1.6e4)]
        return {"004-error": {"figure": "004/error", "ratings": None, "rows": rows, "settings": []}}

    assert verdicts(stored_rows(-0.5))["theorem 2, n"] == "reproduced"
    assert verdicts(stored_rows(-0.3))["theorem 2, n"] == "not reproduced"


@pytest.mark.seconds
def test_the_distance_from_exact_sums_is_of_the_seeds_that_were_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(difference, "ERROR", {"users": 60, "items": 45, "q": 10})
    monkeypatch.setattr(difference, "ERROR_OVER", {"users": (60,)})
    for seeds in ((1,), (1, 2)):
        outcome = difference.errors(Bench(None, tmp_path, seeds, lambda what: None))
        assert [len(row.values) for row in outcome.rows] == [len(seeds)] * 2
        assert all(tuple(setting["seeds"]) == seeds for setting in outcome.settings)


def test_without_rows_only_what_needs_none_is_judged():
    found = verdicts({})
    judged = {name for name, verdict in found.items() if verdict != "not testable here"}
    assert judged == {"one report", "k rounds", "lift"}
    assert found["one report"] == "reproduced"
    assert found["k rounds"] == found["lift"] == "not reproduced"


def test_the_lift_by_the_transpose_keeps_what_the_pseudo_inverse_loses():
    (claim,) = [claim for claim in claims.judge({}) if claim.name == "lift"]
    assert claim.numbers["pseudo-inverse"] == pytest.approx(0.1, abs=0.01)
    assert claim.numbers["transpose"] == pytest.approx(1.0, abs=0.05)


def test_usefulness_needs_both_controls_to_be_beaten():
    def stored_rows(private, alone=1.0, mean=1.1):
        lines = {
            "GD": 1.3,
            "GD-DR": 1.25,
            "every variant": 1.2,
            "as planned": private,
            "users alone": alone,
            "global-mean": mean,
        }
        rows = [
            row(name, x, v, "rmse_clipped") for name, v in lines.items() for x in table.EPSILONS
        ]
        return {
            "004-epsilon-ml-1m": {
                "figure": "004/epsilon",
                "ratings": {"name": "ml-1m"},
                "rows": rows,
            }
        }

    assert verdicts(stored_rows(1.05))["useful"] == "not reproduced"
    assert verdicts(stored_rows(0.9))["useful"] == "reproduced"
    assert verdicts(stored_rows(1.05, alone=1.2))["useful"] == "reproduced"


def test_a_file_that_is_no_figure_is_refused(tmp_path):
    path = tmp_path / "004-fig9" / "004-fig9-ml-1m.json"
    path.parent.mkdir()
    path.write_text("{}")
    with pytest.raises(DataError, match="not the rows of 004/fig9"):
        table.CATALOGUE.stored(tmp_path)


def test_the_page_says_first_whether_it_is_of_use():
    judged = claims.judge({})
    record = shared.claims_summary(table.CATALOGUE, judged, {}, command="x", commit="c", device="d")
    assert "has not been measured yet" in page.page(record, {}).splitlines()[2]
