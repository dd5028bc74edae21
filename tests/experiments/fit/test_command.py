"""The commands as a user meets them: one JSON object, the exit code, nothing written where
something is wrong.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from accounting import compose
from dpmf_jax.data import synthetic
from dpmf_jax.errors import UsageError
from experiments.cli.main import parse
from experiments.fit import mechanisms, report
from experiments.fit import ratings as fit_ratings
from experiments.fit.command import Command
from tests.cases.fit import (
    AUDIT,
    CATALOGUE,
    JOINT,
    RANGE,
    audited,
    fit,
    refused,
    run,
    write_ratings,
)

pytestmark = pytest.mark.usefixtures("elsewhere", "quick_compilation")

RANDOM = np.random.default_rng(0)
SIX = ("--steps", "6")
PRESENCE = ("--relation", "rating-presence", *CATALOGUE)
KEYS = {
    "rmse_train",
    "rmse_test",
    "controls",
    "guarantee",
    "steps",
    "seconds_per_step",
    "device",
    "layout",
    "out",
}


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("mechanism", "status", "released"),
    [
        ("gaussian", "claimed", ["user_factors"]),
        (
            "gaussian-joint-noise",
            "proved",
            ["center", "item_factors", "user_factors"],
        ),
        (
            "gaussian-public-items",
            "proved",
            ["center", "item_factors", "user_factors"],
        ),
        ("non-private", "none", []),
    ],
)
def test_a_fit_is_one_json_object(capsys, mechanism, status, released):
    from safetensors.numpy import load_file

    found = fit(capsys, *SIX, "--mechanism", mechanism, "--test-fraction", "0")
    assert found.keys() >= KEYS
    assert found["rmse_test"] is None
    assert found["steps"] == 6
    guarantee = found["guarantee"]
    assert guarantee["status"] == status
    assert guarantee["statement"]
    file = Path(found["out"]) / "release.safetensors"
    assert (sorted(load_file(file)) if file.exists() else []) == released
    if status == "none":
        assert guarantee["epsilon"] == "inf"
        return
    assert guarantee["unit"] == "rating value"
    assert guarantee["delta"] == 1e-5
    accountants = guarantee["accountants"]
    stated = accountants["closed_form" if status == "claimed" else "exact"]
    assert stated <= guarantee["epsilon"] <= stated + 1e-4
    assert accountants["exact"] <= accountants["pld"] + 1e-9 <= accountants["rdp"] + 2e-9
    assert accountants["rdp"] <= accountants["closed_form"]


@pytest.mark.seconds
def test_held_out_ratings_are_measured_and_every_run_gets_its_own_folder(capsys):
    first, second = fit(capsys, *SIX, "--seed", "1"), fit(capsys, *SIX, "--seed", "1")
    assert first["out"] != second["out"]
    assert first["rmse_test"] == second["rmse_test"] > 0
    assert first["guarantee"]["statement"].startswith("EXPERIMENT: seeded, do not release")
    assert {name for name, values in first["controls"].items() if values["rmse_test"]} == {
        "global_mean",
        "item_means",
    }
    assert first["controls"].keys() == {"global_mean", "item_means", "popularity"}


@pytest.mark.seconds
@pytest.mark.parametrize("mechanism", ["gaussian-joint-noise", "gaussian-public-items"])
def test_presence_is_promised_for_a_declared_catalogue(capsys, mechanism):
    from safetensors.numpy import load_file

    found = fit(capsys, *SIX, *PRESENCE, "--mechanism", mechanism)
    assert (found["guarantee"]["unit"], found["guarantee"]["status"]) == (
        "rating presence",
        "proved",
    )
    released = load_file(Path(found["out"]) / "release.safetensors")
    assert (len(released["user_factors"]), len(released["item_factors"])) == (25, 9)


@pytest.mark.seconds
@pytest.mark.one_case
@pytest.mark.parametrize("mechanism", ["gaussian-joint-noise", "gaussian-public-items"])
def test_priced_noisy_means_stay_within_the_whole_price(capsys, mechanism):
    words = ("--mechanism", mechanism, "--center", "noisy-means", "--epsilon", "2.5")
    found = fit(capsys, *SIX, *words, "--center-share", "0.25", "--seed", "0")
    guarantee, settings = found["guarantee"], found["settings"]
    assert (guarantee["status"], found["steps"], guarantee["steps"]) == (
        "proved",
        6,
        7,
    )
    assert 2.49 < guarantee["epsilon"] <= 2.5
    means, training = (
        0.5 / settings["center_noise_multiplier"] ** 2,
        3 / settings["noise_multiplier"] ** 2,
    )
    assert means / (means + training) == pytest.approx(0.25)
    if mechanism == "gaussian-joint-noise":  # `test_noisy_means` audits it so
        return
    words = (found["out"], "--neighbours", "2", "--quick", "--only", "lookup")
    audit = audited(capsys, *words)
    assert audit["guarantee"]["epsilon"] == guarantee["epsilon"]
    assert {one["mechanism"] for one in audit["findings"]} == {"noisy-item-means", mechanism}
    assert audit["violated"] == 0
    code, _, err = run(capsys, "audit", *words, *AUDIT)  # the table for people shows both too
    assert code == 0, err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--mechanism", "gaussian"], "goes with the sound mechanisms"),
        (["--mechanism", "non-private"], "has a price"),
        (["--center-share", "0"], "between 0 and 1"),
        (["--center-share", "nan"], "between 0 and 1"),
    ],
)
def test_noisy_means_are_refused_where_they_are_not_priced(capsys, flags, told):
    code, err = refused(capsys, *SIX, "--center", "noisy-means", *flags)
    assert code == 4
    assert told in err


def test_a_file_is_not_generated_because_of_its_name(capsys):
    Path("synthetic_clinic.csv").write_text(Path("mine.csv").read_text())
    for words in ([], [*JOINT, "--relation", "rating-presence"]):
        code, _, err = run(capsys, "fit", "synthetic_clinic.csv", *RANGE, *words)
        assert code == 4
        assert "catalogue" in err


@pytest.mark.parametrize(
    ("mechanism", "epsilon", "delta"),
    [
        ("gaussian-joint-noise", 100.0, 1e-5),
        ("user-means", 10.0, 1e-33),
        ("dpsgd", 100.0, 1e-5),
        ("langevin", 100.0, 1e-5),
    ],
)
def test_an_epsilon_that_whole_numbers_have_no_price_for_is_refused(mechanism, epsilon, delta):
    """Their distance from normal noise costs (1 + e^ε)·t of δ."""
    train = synthetic.generate(num_users=20, num_items=10, num_ratings=90)
    flags = mechanisms.flags(mechanism, epsilon=epsilon, delta=delta)
    with pytest.raises(UsageError, match="has a price for an epsilon below") as refused:
        mechanisms.phases_and_settings(mechanism, flags, train)
    assert refused.value.where == "--epsilon"


@pytest.mark.parametrize("mechanism", ["gaussian", "gaussian-joint-noise"])
def test_a_total_epsilon_is_never_exceeded(mechanism):
    train = synthetic.generate(num_users=20, num_items=10, num_ratings=90)
    flags = mechanisms.flags(mechanism, steps=6, epsilon=2.5, delta=1e-6)
    phases, _ = mechanisms.phases_and_settings(mechanism, flags, train)
    guarantee = compose(*(made.guarantee(steps) for made, steps in phases))
    assert 2.49 < guarantee.epsilon <= 2.5
    assert guarantee.delta == 1e-6


@pytest.mark.seconds
def test_noise_as_the_paper_writes_it(capsys):
    found = fit(capsys, *SIX, "--mechanism", "gaussian", "--epsilon-step", "0.15", "--tau", "5")
    assert found["guarantee"]["noise_multiplier"] == pytest.approx(
        np.sqrt(2 * np.log(1.25 / 0.01)) / 0.15
    )
    assert found["guarantee"]["sensitivity"] == pytest.approx(5)


@pytest.mark.parametrize("mechanism", ["gaussian-joint-noise", "gaussian-public-items"])
@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--center", "item"], "without paying"),
        (["--center", "global"], "without paying"),
        (["--tau", "3.9"], "below the width"),
    ],
)
def test_what_a_proof_does_not_allow_ends_with_exit_code_4(capsys, mechanism, flags, told):
    code, err = refused(capsys, *SIX, "--mechanism", mechanism, *flags)
    assert code == 4
    assert told in err
    assert "fix: " in err


@pytest.mark.parametrize(
    ("flags", "code", "told"),
    [
        (["--relation", "rating-presence"], 4, "catalogue"),
        ([*PRESENCE, "--mechanism", "gaussian"], 4, "the paper's"),
        ([*PRESENCE, "--slice", "paper001"], 4, "--slice"),
        ([*PRESENCE, "--duplicates", "first"], 4, "--duplicates"),
        (["--catalogue-users", "nothing.txt"], 3, "catalogue"),
        (["--catalogue-users", "few.txt"], 3, "declared users"),
        ([*PRESENCE, "--mechanism", "gaussian", "--residual-clip", "1"], 4, "mechanism gaussian"),
        (["--mechanism", "non-private", "--epsilon", "1"], 4, "non-private"),
        (["--epsilon", "1", "--epsilon-step", "1"], 2, "both set the noise"),
        (["--epsilon", "0"], 2, "epsilon"),
        (["--epsilon", "nan"], 2, "epsilon"),
        (["--delta", "1"], 2, "delta"),
        (["--steps", "0"], 2, "steps"),
        (["--rank", "0"], 2, "rank"),
        (["--rank", "two"], 2, "rank"),
        (["--learning-rate", "inf"], 2, "learning_rate"),
        (["--center", "middle"], 2, "--center"),
        (["--test-fraction", "1"], 2, "--test-fraction"),
        (["--seed", "-1"], 2, "seed"),
        (["--patience", "0"], 2, "patience"),
        (["--mechanism", "gausian"], 2, "mechanism"),
        (["--ranks", "3"], 2, "ranks"),
        (["--items", "nothing.csv", "--mechanism", "gaussian-public-items"], 3, "no such file"),
        (["--items", "mine.csv"], 2, "--items"),
        (["--rating-column", "stars"], 3, "stars"),
        (["--rating-range", "2", "5"], 3, "outside"),
        (["--rating-range", "5", "1"], 2, "range"),
    ],
)
def test_a_wrong_flag_gets_a_clear_answer_and_nothing_is_written(capsys, flags, code, told):
    found, err = refused(capsys, *SIX, *flags)
    assert found == code, err
    assert told in err


def test_a_range_is_declared_and_never_computed(capsys):
    code, _, err = run(capsys, "fit", "mine.csv", *JOINT)
    assert code == 2
    assert "--rating-range" in err or "rating_range" in err


@pytest.mark.seconds
def test_item_factors_from_a_file_follow_the_ids(capsys):
    factors = RANDOM.standard_normal((7, 2)).astype(np.float32)
    order = RANDOM.permutation(7)
    Path("items.csv").write_text(
        "item,a,b\n" + "\n".join(f"{i},{factors[i, 0]},{factors[i, 1]}" for i in order) + "\n"
    )
    np.save("items.npy", factors)
    words = ("--mechanism", "gaussian-public-items", "--seed", "3", "--items")
    by_id, by_order = fit(capsys, *SIX, *words, "items.csv"), fit(capsys, *SIX, *words, "items.npy")
    assert by_id["rmse_train"] == by_order["rmse_train"]
    assert by_id["settings"]["rank"] == 2
    Path("short.csv").write_text("item,a\n0,1\n")
    code, err = refused(capsys, *SIX, *words, "short.csv")
    assert code == 3
    assert "is missing" in err


@pytest.mark.seconds
def test_a_saved_model_recommends_predicts_and_evaluates(capsys):
    folder = fit(capsys, *SIX, "--seed", "1")["out"]
    code, out, _ = run(capsys, "recommend", folder, "--user", "u3", "--top", "2", "--json")
    assert code == 0
    assert json.loads(out)["user"] == "u3"
    code, out, _ = run(
        capsys,
        "recommend",
        folder,
        "--user",
        "u3",
        "--format",
        "csv",
        "--include-seen",
        "--top",
        "3",
    )
    assert code == 0
    assert out.splitlines()[0] == "item,predicted_rating"
    assert len(out.splitlines()) == 4
    code, out, _ = run(
        capsys, "predict", folder, "--user", "u3", "u4", "--item", "1", "2", "--json"
    )
    assert code == 0
    assert all(1 <= row["rating"] <= 5 for row in json.loads(out)["predicted"])
    code, out, _ = run(capsys, "evaluate", folder, "--data", "mine.csv", "--json")
    assert code == 0
    assert json.loads(out)["unknown"] == 0
    assert run(capsys, "recommend", folder, "--user", "nobody")[0] == 3
    code, out, _ = run(capsys, "recommend", folder, "--user", "u3", "u1", "--top", "2", "--json")
    assert code == 0
    found = json.loads(out)
    assert [row["user"] for row in found["recommended"]] == ["u3", "u3", "u1", "u1"]
    assert found["users"] == ["u3", "u1"]
    code, out, _ = run(
        capsys, "recommend", folder, "--user", "u3", "--user", "u1", "--top", "2", "--format", "csv"
    )
    assert code == 0
    assert out.splitlines()[0] == "user,item,predicted_rating"
    assert [line.split(",")[0] for line in out.splitlines()[1:5]] == ["u3", "u3", "u1", "u1"]
    assert run(capsys, "recommend", folder, "--user", "u3", "u1")[0] == 0
    code, _, err = run(capsys, "recommend", folder, "--user", "u3", "nobody")
    assert code == 3
    assert "nobody" in err
    assert run(capsys, "predict", folder, "--user", "u3", "--item", "1", "2")[0] == 2


@pytest.mark.parametrize("given", ["users", "items"])
def test_one_catalogue_is_not_enough_for_presence(capsys, given):
    code, err = refused(
        capsys, *SIX, "--relation", "rating-presence", f"--catalogue-{given}", f"{given}.txt"
    )
    assert code == 4
    assert "declared catalogue" in err


def test_the_split_seed_splits():
    words = ["mine.csv", *RANGE, *JOINT, "--test-fraction", "0.5", "--split-seed"]
    (one, first), (other, second) = (
        fit_ratings.read(parse("fit", Command, [*words, seed])) for seed in ("0", "1")
    )
    assert len(first) == len(second) == len(one) == len(other)
    assert not np.array_equal(first.item, second.item)


@pytest.mark.seconds
def test_every_fit_ranks_its_model_and_its_controls(capsys):
    """Of one table: popularity has an order and no error, and a model without an order of its own
    says so.
    """
    words = ("--test-fraction", "0.3", "--seed", "0", "--mechanism", "gaussian-public-items")
    result = fit(capsys, *SIX, *words)
    assert result["ranks_alike"]
    assert result["presence_is_public"]
    assert 0 <= result["ndcg_at_10"] <= 1
    popularity = result["controls"]["popularity"]
    assert (popularity["rmse_train"], popularity["rmse_test"]) == (None, None)
    assert 0 <= popularity["ndcg_at_10"] <= 1
    assert "popularity" in result["utility"]
    assert "ranks items alike for all users" in result["utility"]
    Console(width=120).print(report.render(result))
    out = capsys.readouterr().out
    assert "NDCG@10" in out
    assert re.search(r"popularity +.* public here", out)


@pytest.mark.seconds
def test_the_default_center_is_noisy_means_out_of_the_same_epsilon(capsys):
    """A quarter of ρ for the means; of joint noise, which a fit without --mechanism is, as of
    public items (a half).
    """
    for words, share in (((), 0.25), (("--mechanism", "gaussian-public-items"), 0.5)):
        found = fit(capsys, *SIX, *words, "--seed", "0")
        settings = found["settings"]
        assert settings["center"] == "noisy-means"
        means, training = (
            0.5 / settings["center_noise_multiplier"] ** 2,
            3 / settings["noise_multiplier"] ** 2,
        )
        assert means / (means + training) == pytest.approx(share)
        assert 2.999 < found["guarantee"]["epsilon"] <= 3.0
        assert (
            "center" in found["guarantee"]["released"]
            or "item means" in found["guarantee"]["released"]
        )
    assert fit(capsys, *SIX, "--center", "3", "--seed", "0")["settings"]["center"] == 3.0
    code, err = refused(capsys, *SIX, "--center", "3", "--center-share", "0.25")
    assert code == 2
    assert "--center-share goes with --center noisy-means" in err


@pytest.mark.seconds
def test_ratings_far_from_the_middle_of_the_range_are_no_reason_to_lose_to_the_global_mean(capsys):
    """0 to 10, rated 7.5 on average, few ratings a user: the middle of the range loses by far."""
    random = np.random.default_rng(0)
    user, item = (random.integers(0, most, 6000) for most in (800, 60))
    value = np.clip(
        np.round(7.5 + random.normal(0, 1, 60)[item] + random.normal(0, 1.4, 6000)), 0, 10
    )
    rows = {(u, i): v for u, i, v in zip(user.tolist(), item.tolist(), value.tolist(), strict=True)}
    write_ratings("high.csv", ((u, i, f"{v:g}") for (u, i), v in rows.items()))
    words = (
        "fit",
        "high.csv",
        *JOINT,
        "--rating-range",
        "0",
        "10",
        "--controls",
        "simple",
        "--seed",
        "0",
        "--json",
    )
    ours, middle = (json.loads(run(capsys, *words, *more)[1]) for more in ((), ("--center", "5")))
    control = ours["controls"]["global_mean"]["rmse_test"]
    assert ours["rmse_test"] < control < middle["rmse_test"]


@pytest.mark.seconds
def test_the_defaults_are_the_documented_ones(capsys):
    assert fit(capsys, *SIX)["settings"]["residual_clip"] == 1.0  # a quarter of 1..5
