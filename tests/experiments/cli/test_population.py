"""Whose ratings a release is about: a refit adds up, and the ledger says where it may hold the same
people twice.
"""

import dataclasses
import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest

from accounting import compose, people, priced, relation
from accounting.ledger import Entry, budgets, overlaps, parse, to_line
from accounting.loss import Gaussian, Pure
from dpmf_jax.models import ledger
from dpmf_jax.models.model import Model
from dpmf_jax.protocol import Release
from experiments.cli import main as cli
from tests.cases.fit import JOINT, RANGE, run
from tests.cases.ledger import VALUE, shown

pytestmark = pytest.mark.usefixtures("elsewhere")

LEDGER = Path("ledger.json")
KEY = "00" * 16
PRICE = priced(
    mechanism="gaussian-joint-noise",
    losses=(Gaussian(noise_multiplier=50.0, num_steps=100),),
    delta=1e-5,
    unit="rating value",
    relation=VALUE,
    released=("item factors",),
    trust_model="trusted curator",
    status="proved",
)


def entry(
    number, *, population="mine", ids=None, data_hash=None, key=KEY, data_set=None, guarantee=PRICE
):
    return Entry(
        id=hashlib.sha256(f"release {number}".encode()).hexdigest(),
        time=f"2025-01-{number + 1:02}T00:00:00+00:00",
        population=population,
        data_set=data_set or population,
        data_hash=data_hash,
        people=None if ids is None else people.sample(ids, key=key),
        guarantee=guarantee,
        model=f"runs/{number}",
    )


def fitted(capsys, file, out, *words):
    words = [
        "fit",
        file,
        *JOINT,
        "--rating-range",
        "1",
        "5",
        "--steps",
        "2",
        "--controls",
        "none",
        "--devices",
        "1",
        *words,
    ]
    code, _, err = run(capsys, *words, "--out", out)
    assert code == 0, err


def one_row_changed():
    """a.csv, and b.csv: the same file under another name, with another value in one row."""
    lines = Path("mine.csv").read_text().splitlines()
    Path("a.csv").write_text("\n".join(lines) + "\n")
    start, value = lines[1].rsplit(",", 1)
    lines[1] = f"{start},{6 - int(value) if value != '3' else 4}"
    Path("b.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.seconds
def test_a_refit_of_a_changed_and_renamed_file_does_not_reset_the_budget(capsys):
    one_row_changed()
    fitted(capsys, "a.csv", "one", "--population", "shop")
    once = shown(capsys)["data_sets"][0]["epsilon"]
    fitted(capsys, "b.csv", "two", "--population", "shop")
    result = shown(capsys, "shop")
    (found,) = result["data_sets"]
    assert found["names"] == ["shop"]
    assert (found["releases"], len(found["data_hashes"])) == (2, 2)
    assert {one["data_set"] for one in found["entries"]} == {"a", "b"}
    assert found["epsilon"] > once
    assert result["overlaps"] == []
    assert (
        found["epsilon"] == compose(*(one.guarantee for one in parse(LEDGER.read_text()))).epsilon
    )
    code, _, err = run(capsys, "budget", "show", "--limit", once)
    assert code == 4
    assert "shop: the total epsilon is" in err


@pytest.mark.seconds
def test_without_a_name_the_same_people_are_said_to_be_in_both(capsys):
    one_row_changed()
    fitted(capsys, "a.csv", "one")
    fitted(capsys, "b.csv", "two")
    result = shown(capsys)
    assert [found["names"] for found in result["data_sets"]] == [["a"], ["b"]]
    (overlap,) = result["overlaps"]
    assert overlap["names"] == ["a", "b"]
    assert overlap["pairs"] == [{"names": ["a", "b"], "shared": 20, "users": [20, 20]}]
    both = compose(*(one.guarantee for one in parse(LEDGER.read_text()))).epsilon
    assert overlap["epsilon"] == both
    once = max(found["epsilon"] for found in result["data_sets"])
    code, out, err = run(capsys, "budget", "show", "--limit", once)
    assert code == 4
    said = " ".join(out.split())
    assert (
        "the same people are probably in a and b: about 20 user ids are in both, of 20 and 20"
        in said
    )
    assert "for a person in all of these, 2 releases add up" in said
    assert "--population" in said
    assert f"a and b, where the same people probably are: the total epsilon is {both:.4f}" in err
    code, out, err = run(capsys, "budget", "show", "--limit", once, "--different-people")
    assert (code, err) == (0, "")
    assert "the same people are probably" not in out


def test_a_model_keeps_its_population_for_a_later_entry_and_for_a_resume(capsys, monkeypatch):
    one_row_changed()
    monkeypatch.setenv("DPMF_LEDGER", str(Path("another.jsonl").absolute()))
    fitted(capsys, "a.csv", "one", "--population", "shop")
    monkeypatch.setenv("DPMF_LEDGER", str(LEDGER.absolute()))
    assert run(capsys, "budget", "add", "one")[0] == 0
    assert [one.population for one in parse(LEDGER.read_text())] == ["shop"]
    code, _, err = run(capsys, "fit", "--resume", "one", "--population", "another")
    assert code == 4
    assert "--population was shop when the run was started, now another" in err


def test_a_fit_whose_release_no_ledger_would_hold_spends_nothing(capsys, monkeypatch):
    one_row_changed()
    monkeypatch.setenv("DPMF_LEDGER", str(Path().absolute()))  # a folder
    code, _, err = run(capsys, "fit", "a.csv", *JOINT, *RANGE, "--out", "one")
    assert (code, err.splitlines()[0]) == (3, "error: the ledger is a folder")
    assert not Path("one").exists()


@pytest.mark.parametrize("name", ["", " ", "two\nlines"])
def test_a_population_without_a_name_is_refused_before_the_fit(capsys, name):
    before = sorted(Path().rglob("*"))
    code, out, err = run(
        capsys, "fit", "mine.csv", "--rating-range", "1", "5", "--population", name
    )
    assert (code, out) == (2, "")
    assert "population must be one line of text" in err
    assert sorted(Path().rglob("*")) == before


def test_a_fit_whose_release_is_refused_does_not_say_that_it_was_entered(capsys, monkeypatch):
    from dpmf_jax.errors import UsageError

    def refuse(model):
        raise UsageError(
            "the model does not name its data set", where=str(model), fix="give --data-set NAME"
        )

    one_row_changed()
    monkeypatch.setattr(ledger, "record", refuse)
    words = [
        "fit",
        "a.csv",
        *JOINT,
        "--rating-range",
        "1",
        "5",
        "--steps",
        "1",
        "--controls",
        "none",
        "--devices",
        "1",
    ]
    code, out, err = run(capsys, *words, "--out", "one", "--json")
    assert code == 0
    assert json.loads(out)["ledger"] is None
    assert "its release is in no ledger: the model does not name its data set" in err


def ids(start, stop):
    return [f"user {number}" for number in range(start, stop)]


def test_equal_lists_share_everyone_in_whatever_order_and_type():
    first = people.sample(range(1, 944), key=KEY)
    assert people.num_shared(first, people.sample(np.arange(943, 0, -1), key=KEY)) == 943
    assert (
        people.num_shared(first, people.sample(np.array([str(n) for n in range(1, 944)]), key=KEY))
        == 943
    )
    assert people.sample([1, 1, 2], key=KEY).users == 2


@pytest.mark.parametrize(
    ("first", "second", "both"), [((0, 6000), (3000, 9000), 3000), ((0, 1000), (0, 4000), 1000)]
)
def test_the_estimate_is_near(first, second, both):
    found = [
        people.num_shared(
            *(people.sample(ids(*span), key=f"{seed:032x}") for span in (first, second))
        )
        for seed in range(20)
    ]
    assert all(found)
    assert np.mean(found) == pytest.approx(both, rel=0.1)
    assert all(both / 2 < one < 2 * both for one in found)


def test_lists_apart_share_nobody_and_other_keys_say_nothing():
    assert (
        people.num_shared(
            people.sample(ids(0, 5000), key=KEY), people.sample(ids(5000, 9000), key=KEY)
        )
        == 0
    )
    assert (
        people.num_shared(
            people.sample(ids(0, 100), key=KEY), people.sample(ids(0, 100), key="11" * 16)
        )
        is None
    )


@pytest.mark.parametrize("users", [2, 3, 20, 943, 1024, 100_000])
def test_a_ledger_is_no_second_list_of_users(users):
    """256 hashes at most, of a quarter of the users at most (one where there are fewer than four);
    no id itself.
    """
    line = to_line(entry(0, ids=ids(0, users)))
    kept = people.sample(ids(0, users), key=KEY).hashes
    assert len(kept) == max(1, min(256, users // 4))
    assert len(line) < 10_000
    assert "user 1" not in line
    assert parse(line) == (entry(0, ids=ids(0, users)),)


def test_the_hashes_are_keyed_blake2b_and_the_smallest():
    every = sorted(
        int.from_bytes(hashlib.blake2b(one.encode(), digest_size=8, key=bytes(16)).digest())
        for one in ids(0, 40)
    )
    assert people.sample(ids(0, 40), key=KEY).hashes == tuple(every[:10])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"key": "xy"}, "key must be"),
        ({"users": 0}, "users must be"),
        ({"users": True}, "users must be"),
        ({"hashes": ()}, "hashes must be"),
        ({"hashes": (3, 2)}, "hashes must be"),
        ({"hashes": (2**64,)}, "hashes must be"),
        ({"hashes": (1, 2, 3, 4, 5)}, "hashes must be"),
    ],
)
def test_a_sample_that_is_none_is_refused(change, told):
    with pytest.raises(ValueError, match=told):
        dataclasses.replace(people.People(key=KEY, users=4, hashes=(1,)), **change)


@pytest.mark.parametrize(
    "value", [3, "people", {"key": KEY}, {"key": KEY, "users": 4, "hashes": "xyz"}]
)
def test_a_line_with_a_foreign_sample_is_named(value):
    fields = json.loads(to_line(entry(0))) | {"people": value}
    with pytest.raises(ValueError, match=r"line 1: .*people"):
        parse(json.dumps(fields))


def old(one):
    """The line of format 1, which knew of no populations."""
    fields = json.loads(to_line(one)) | {"format": 1}
    return (
        json.dumps(
            {name: value for name, value in fields.items() if name not in ("population", "people")}
        )
        + "\n"
    )


def test_a_ledger_of_before_is_read_and_its_populations_are_its_data_sets():
    before, after = entry(0), entry(1, ids=ids(0, 20))
    assert parse(old(before) + to_line(after)) == (before, after)
    (budget,) = budgets(parse(old(before) + to_line(after)))
    assert budget.names == ("mine",)
    assert budget.epsilon == compose(PRICE, PRICE).epsilon


def test_an_old_release_of_the_same_name_is_probably_of_the_same_people():
    """Its line holds no ids: without this, naming a population would be a way to begin anew."""
    found = overlaps(
        parse(
            old(entry(0, data_set="a", population="a"))
            + to_line(entry(1, population="b", data_set="a"))
        )
    )
    assert [(one.names, one.pairs[0].shared) for one in found] == [(("a", "b"), None)]
    assert (
        overlaps([entry(0, population="a", data_set="x"), entry(1, population="b", data_set="y")])
        == ()
    )
    with_ids = [
        entry(n, population=name, data_set="x", ids=ids(*span))
        for n, name, span in ((0, "a", (0, 50)), (1, "b", (50, 99)))
    ]
    assert overlaps(with_ids) == ()  # two shops may both call a file ratings.csv


def test_releases_of_one_population_add_up_whatever_the_data_and_equal_data_is_one_population():
    shop = [
        entry(0, population="shop", data_hash="aa"),
        entry(1, population="shop", data_hash="bb"),
    ]
    assert [one.names for one in budgets(shop)] == [("shop",)]
    (both,) = budgets([*shop, entry(2, population="another", data_hash="bb")])
    assert both.names == ("another", "shop")
    assert both.epsilon == compose(PRICE, PRICE, PRICE).epsilon
    apart = [
        entry(0, population="a", data_set="ratings"),
        entry(1, population="b", data_set="ratings"),
    ]
    assert [one.names for one in budgets(apart)] == [("a",), ("b",)]


def test_people_in_three_populations_pay_for_all_three():
    chain = [
        entry(0, population="a", ids=ids(0, 2000)),
        entry(1, population="b", ids=ids(1000, 3000)),
        entry(2, population="c", ids=ids(2000, 4000)),
        entry(3, population="d", ids=ids(8000, 9000)),
    ]
    (found,) = overlaps(chain)
    assert found.names == ("a", "b", "c")
    assert [pair.names for pair in found.pairs] == [("a", "b"), ("b", "c")]
    assert found.together.epsilon == compose(PRICE, PRICE, PRICE).epsilon
    assert overlaps(chain, delta=1e-6)[0].together.totals[0].delta == 1e-6
    assert overlaps([chain[2], chain[0], chain[3], chain[1]]) == (found,)


def test_an_overlap_that_does_not_add_up_keeps_no_limit(capsys):
    other = dataclasses.replace(PRICE, unit="rating presence", relation=relation.PRESENCE)
    LEDGER.write_text(
        to_line(entry(0, population="a", ids=ids(0, 50)))
        + to_line(entry(1, population="b", ids=ids(0, 50), guarantee=other))
    )
    code, _, err = run(capsys, "budget", "show", "--limit", "1000")
    assert code == 4
    assert (
        "a and b, where the same people probably are: the releases protect different things" in err
    )
    (overlap,) = shown(capsys)["overlaps"]
    assert overlap["epsilon"] == "inf"
    assert len(overlap["totals"]) == 2


def test_show_of_one_population_tells_of_those_that_it_meets(capsys):
    LEDGER.write_text(
        "".join(to_line(entry(n, population=name, ids=ids(0, 50))) for n, name in enumerate("ab"))
        + to_line(entry(2, population="c", data_set="file", ids=ids(90, 99)))
    )
    result = shown(capsys, "a")
    assert [one["names"] for one in result["data_sets"]] == [["a"]]
    assert [one["names"] for one in result["overlaps"]] == [["a", "b"]]
    assert shown(capsys, "c")["overlaps"] == []
    assert shown(capsys, "file") == shown(capsys, "c")  # a data set's name finds its population


def saved(name, users, number=0, data="mine"):
    Model(
        release=Release(
            user_factors=None, item_factors=np.full((2, 1), 1.0 + number, np.float32), center=None
        ),
        guarantee=PRICE,
        users=np.array(users),
        items=np.array(["x", "y"]),
        rating_range=(1.0, 5.0),
        settings={"data": data},
    ).save(name)
    return Path(name)


def test_one_ledger_has_one_key_and_another_ledger_another():
    for number in range(3):
        ledger.record(saved(f"model {number}", ids(0, 30), number), population=f"p{number}")
    ledger.record(saved("model 3", ids(0, 30), 3), ledger=Path("elsewhere.jsonl"))
    first, *rest = ledger.read(LEDGER)
    (other,) = ledger.read(Path("elsewhere.jsonl"))
    assert {one.people.key for one in rest} == {first.people.key}
    assert other.people.key != first.people.key
    assert first.people == people.sample(ids(0, 30), key=first.people.key)
    assert LEDGER.stat().st_mode & 0o777 == 0o600


def test_the_same_people_are_found_through_models_entered_by_hand(capsys):
    saved("one", ids(0, 30), 1, data="a")
    saved("two", ids(10, 40), 2, data="b")
    assert run(capsys, "budget", "add", "one")[0] == 0
    assert run(capsys, "budget", "add", "two", "--population", "shop")[0] == 0
    result = shown(capsys)
    assert [one["names"] for one in result["data_sets"]] == [["a"], ["shop"]]
    assert [one["population"] for found in result["data_sets"] for one in found["entries"]] == [
        "a",
        "shop",
    ]


def test_help_and_what_is_shown_say_what_the_ledger_cannot_know(capsys):
    for words in (["budget", "show", "--help"], ["fit", "--help"]):
        with pytest.raises(SystemExit, match="0"):
            cli.main(words)
        said = " ".join(capsys.readouterr().out.split())
        assert "--population" in said
        assert words[0] == "fit" or "does not know of people under other ids" in said
    LEDGER.write_text(to_line(entry(0, ids=ids(0, 20))))
    _, out, _ = run(capsys, "budget", "show")
    said = " ".join(out.split())
    for unknown in ("other user ids", "another ledger", "was deleted"):
        assert unknown in said


def test_pure_releases_of_two_populations_add_up_to_the_sum():
    each = priced(
        mechanism="local",
        losses=(Pure(epsilon=0.25),),
        delta=0.0,
        unit="user",
        relation="one user",
        released=("reports",),
        trust_model="local",
        status="proved",
    )
    (found,) = overlaps(
        [entry(n, population=f"p{n}", ids=ids(0, 9), guarantee=each) for n in range(3)]
    )
    assert math.isclose(found.together.epsilon, 0.75)
