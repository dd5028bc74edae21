"""What docs/benchmark/findings.md says is in the rows beside it."""

import json
import re

import pytest

from experiments.benchmark.protocol import EPSILONS
from tests.cases import CHECKOUT

FOLDER = CHECKOUT / "docs" / "benchmark"


@pytest.fixture(scope="module")
def rows():
    kept = json.loads((FOLDER / "ml-100k.json").read_text(encoding="utf-8"))["rows"]
    return [row for row in kept if row["repeats"]]


def number(rows, contender, epsilon, name="rmse", split="ratings"):
    [found] = [
        row["numbers"][name]
        for row in rows
        if (row["contender"], row["epsilon"], row["split"]) == (contender, epsilon, split)
    ]
    return found["mean"]


def test_every_number_of_the_page_is_one_of_the_rows(rows):
    text = (FOLDER / "findings.md").read_text(encoding="utf-8")
    means = {
        f"{found['mean']:.3f}"
        for row in rows
        for found in row["numbers"].values()
        if found is not None
    }
    means |= {
        f"{value:.3f}"
        for row in rows
        for value in row["rmse_by_activity"] or ()
        if value is not None
    }
    told = re.findall(r"\b[01234]\.\d{3}\b", text)
    assert len(told) > 20
    assert set(told) <= means


def test_every_row_of_six_prices_is_that_of_its_mechanism(rows):
    text = (FOLDER / "findings.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `([^`]+)` \|((?: [\d.]+ \|){6})$", text, re.MULTILINE)
    assert len(told) == 13
    for name, cells in told:
        expected = [f"{number(rows, name, epsilon):.3f}" for epsilon in EPSILONS]
        assert [cell.strip() for cell in cells.split("|")[:6]] == expected, name


def test_claims_of_the_papers_are_worth_less_than_what_is_proved(rows):
    for epsilon in EPSILONS:
        proved = number(rows, "gaussian-public-items", epsilon)
        for published in ("gaussian", "objective", "federated"):
            assert number(rows, published, epsilon) > proved
            assert number(rows, published, epsilon) > number(rows, "item means", None)
    for row in rows:
        if row["contender"] in ("gaussian", "objective", "federated"):
            assert row["promise"]["status"] == "claimed"
            assert row["audits"]["violated"] > 0


def test_one_rating_hidden_costs_next_to_nothing_and_a_user_a_little(rows):
    plain = number(rows, "biased mf", None)
    assert number(rows, "ridge", 1.0) - plain < 0.02
    assert number(rows, "als", 8.0) - plain > 0.02
    for epsilon in EPSILONS:
        assert number(rows, "local", epsilon) > number(rows, "global mean", None)
        assert number(rows, "als", epsilon) < number(rows, "gaussian-joint-noise", epsilon)


def test_lists_are_learned_from_who_has_seen_what(rows):
    popular = number(rows, "popularity", None, "ndcg_at_10")
    predicted = [
        row["numbers"]["ndcg_at_10"]["mean"]
        for row in rows
        if row["split"] == "ratings"
        and row["numbers"]["rmse"] is not None
        and row["numbers"]["ndcg_at_10"] is not None
    ]
    assert max(predicted) < popular
    popular = number(rows, "popularity", None, "ndcg_at_10", "users")
    assert number(rows, "als-implicit", 8.0, "ndcg_at_10", "users") > 1.2 * popular


def test_the_most_active_have_the_most_to_gain_from_a_higher_price(rows):
    by_group = {
        row["epsilon"]: row["rmse_by_activity"]
        for row in rows
        if (row["contender"], row["split"]) == ("als", "ratings")
    }
    gains = [low - high for low, high in zip(by_group[1.0], by_group[8.0], strict=True)]
    assert gains[-1] > 2 * gains[0] > 0


def test_a_choice_of_the_rank_is_not_worth_its_price(rows):
    for epsilon in EPSILONS:
        for name in ("als", "gaussian-joint-noise"):
            assert number(rows, f"{name}, tuned", epsilon) > number(rows, name, epsilon)
