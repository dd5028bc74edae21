"""`dpmf fit` of paper 003 with a trusted recommender: prices, what is released, public users, what
is refused.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from accounting import objective as prices
from dpmf_jax.mechanisms.objective import spec as objective_spec
from dpmf_jax.models import model
from experiments.audit import subjects
from experiments.audit.flags import Command
from experiments.cli.main import parse
from tests.cases.fit import AUDIT, CATALOGUE, PAIRS, RANGE, audited, fit, refused, run, verdicts

pytestmark = pytest.mark.usefixtures("elsewhere", "quick_compilation")

RANDOM = np.random.default_rng(0)
PUBLISHED = ["--mechanism", "objective", "--rank", "3", "--user-passes", "5"]
PUBLIC = ["--mechanism", "objective-public-users"]
STATISTICS = ["--mechanism", "objective-statistics"]


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("words", "epsilon", "status", "unit", "released"),
    [
        (
            (*PUBLISHED, "--epsilon", "1"),
            1.0,
            "claimed",
            "rating value",
            ["center", "item_factors"],
        ),
        (
            (*PUBLISHED, "--sgd-passes", "4"),
            0.15,
            "claimed",
            "rating value",
            ["center", "item_factors"],
        ),
        (
            (*PUBLISHED, "--noise", "laplace"),
            0.15,
            "claimed",
            "rating value",
            ["center", "item_factors"],
        ),
        (
            PUBLIC,
            3.0,
            "proved",
            "rating value",
            ["center", "item_factors", "user_factors"],
        ),
        (
            (*PUBLIC, "--noise", "gaussian"),
            3.0,
            "proved",
            "rating value",
            ["center", "item_factors", "user_factors"],
        ),
        (
            (*PUBLIC, "--rank", "4"),
            3.0,
            "proved for real-number noise",
            "rating value",
            ["center", "item_factors", "user_factors"],
        ),
        (
            STATISTICS,
            3.0,
            "proved",
            "rating presence",
            ["center", "item_factors", "user_factors"],
        ),
    ],
)
def test_a_fit_is_one_release_at_epsilon(capsys, words, epsilon, status, unit, released):
    found = fit(capsys, *words, "--seed", "0")
    guarantee = found["guarantee"]
    assert (guarantee["status"], guarantee["unit"], guarantee["steps"], found["steps"]) == (
        status,
        unit,
        1,
        1,
    )
    assert epsilon - 1e-3 < guarantee["epsilon"] <= epsilon
    assert guarantee["delta"] == (1e-5 if "gaussian" in words or unit == "rating presence" else 0)
    assert guarantee["accountants"]
    assert sorted(load_file(Path(found["out"]) / "release.safetensors")) == released
    assert math.isfinite(found["rmse_test"])
    assert found["utility"]
    assert guarantee["statement"].startswith("EXPERIMENT: seeded, do not release")


@pytest.mark.seconds
def test_item_factors_alone_predict_nothing_without_the_private_folder(capsys):
    folder = Path(fit(capsys, *PUBLISHED, "--seed", "0")["out"])
    words = ["predict", folder, "--user", "u1", "--item", "2"]
    assert run(capsys, *words)[0] == 0
    for file in (folder / "private").iterdir():
        file.unlink()
    code, _, err = run(capsys, *words)
    assert code == 3
    assert "user factors" in err
    assert "private/factors.safetensors" in err


def test_public_users_predict_from_the_release_alone(capsys):
    folder = Path(fit(capsys, *PUBLIC, "--seed", "0")["out"])
    for file in (folder / "private").iterdir():
        file.unlink()
    words = ["predict", folder, "--user", "u1", "--item", "2", "--json"]
    code, out, err = run(capsys, *words)
    assert code == 0, err
    released = load_file(folder / "release.safetensors")
    users, items = (model.load(folder).users, model.load(folder).items)
    product = (
        released["user_factors"][list(users).index("u1")]
        @ released["item_factors"][list(items).index(2)]
    )
    assert json.loads(out)["predicted"][0]["rating"] == pytest.approx(
        np.clip(released["center"] + product, 1, 5), abs=1e-6
    )
    code, _, err = run(capsys, "recommend", folder, "--user", "u1", "--include-seen")
    assert code == 0, err


def test_a_saved_price_is_computed_again(capsys):
    folder = fit(capsys, *PUBLIC, "--noise", "gaussian", "--epsilon", "2", "--seed", "0")["out"]
    code, out, err = run(capsys, "epsilon", "model", folder, "--json", "--user-ratings", "10")
    assert code == 0, err
    told = json.loads(out)
    assert told["epsilon"] == told["saved_epsilon"] <= 2.0
    assert told["user"]["num_ratings"] == 10


@pytest.mark.seconds
def test_presence_needs_a_catalogue_that_no_rating_tells(capsys):
    code, err = refused(capsys, *STATISTICS)
    assert code == 4
    assert "catalogue" in err
    assert "--seed" in err
    found = fit(capsys, *STATISTICS, *CATALOGUE)
    assert found["guarantee"]["seeded"] is False
    released = load_file(Path(found["out"]) / "release.safetensors")
    assert (len(released["user_factors"]), len(released["item_factors"])) == (25, 9)
    assert np.abs(released["item_factors"]).min() > 0  # of unrated items too: there is noise on all
    code, err = refused(capsys, *STATISTICS, *CATALOGUE, "--duplicates", "mean")
    assert code == 4
    assert "--duplicates" in err


def test_who_is_held_out_of_a_presence_fit_does_not_depend_on_other_ratings(capsys):
    from experiments.fit import command as fit_command
    from experiments.fit import ratings as fit_ratings

    def parts(path):
        words = [
            path,
            "--mechanism",
            "objective-statistics",
            "--seed",
            "0",
            *RANGE,
            "--test-fraction",
            "0.3",
        ]
        command = parse("fit", fit_command.Command, words)
        train, _ = fit_ratings.read(command)
        return {
            (str(train.users[u]), str(train.items[i]))
            for u, i in zip(train.user, train.item, strict=True)
        }

    lines = Path("mine.csv").read_text().splitlines()
    gone = lines[40]
    Path("fewer.csv").write_text("\n".join(line for line in lines if line != gone) + "\n")
    assert parts("fewer.csv") == parts("mine.csv") - {tuple(gone.split(",")[:2])}


def test_public_user_factors_come_from_a_file_by_id(capsys):
    users = sorted({f"u{pair // 7}" for pair in PAIRS})
    factors = RANDOM.standard_normal((len(users), 2)).astype(np.float32)
    order = RANDOM.permutation(len(users))
    rows = [f"{users[i]},{factors[i, 0]!s},{factors[i, 1]!s}" for i in order]
    Path("factors.csv").write_text("user,a,b\n" + "\n".join(rows) + "\n")
    np.save("factors.npy", factors)
    words = (*PUBLIC, "--seed", "3", "--test-fraction", "0", "--users")
    by_id, by_order = fit(capsys, *words, "factors.csv"), fit(capsys, *words, "factors.npy")
    assert by_id["rmse_train"] == by_order["rmse_train"]
    assert by_id["settings"]["rank"] == 2
    assert by_id["settings"]["users"] == "public file"
    released = load_file(Path(by_id["out"]) / "release.safetensors")["user_factors"]
    longer = np.maximum(1, np.linalg.norm(factors, axis=1, keepdims=True))
    np.testing.assert_allclose(released, factors / longer, rtol=1e-4)
    code, err = refused(capsys, *words, "factors.csv", "--rank", "3")
    assert (code, "--rank 3 and 2 factors" in err) == (2, True)
    Path("factors.csv").write_text("user,a,b\n" + "\n".join(rows[1:]) + "\n")
    code, err = refused(capsys, *words, "factors.csv")
    assert code == 3
    assert f"user {users[order[0]]} is missing" in err
    code, err = refused(capsys, *words, "nothing.csv")
    assert (code, "no such file of user factors" in err) == (3, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((*PUBLISHED, "--steps", "5"), "--steps means nothing to --mechanism objective"),
        ((*PUBLISHED, "--users", "users.txt"), "--users means nothing"),
        ((*PUBLISHED, "--noise", "gaussian"), "not the paper's"),
        ((*PUBLISHED, "--delta", "1e-6"), "--delta means nothing"),
        ((*PUBLISHED, "--rating-bound", "2"), "--rating-bound means nothing"),
        ((*PUBLISHED, "--relation", "rating-presence", *CATALOGUE), "--relation means nothing"),
        ((*PUBLISHED, "--center", "item"), "--center item is not for"),
        ((*PUBLISHED, "--user-passes", "0"), "at least 1"),
        ((*PUBLISHED, "--sgd-passes", "0"), "at least 1"),
        ((*PUBLISHED, "--epsilon", "0"), "epsilon must be positive"),
        ((*PUBLIC, "--sgd-passes", "5"), "--sgd-passes means nothing"),
        ((*PUBLIC, "--learning-rate", "5"), "--learning-rate means nothing"),
        ((*PUBLIC, "--delta", "1e-6"), "--delta means nothing for pure noise (l2-laplace)"),
        ((*PUBLIC, "--center", "noisy-means"), "--center noisy-means is not for"),
        ((*PUBLIC, "--center", "x"), "is not noisy-means, item, global, none or a number"),
        ((*PUBLIC, "--prior-count", "0"), "prior_count must be an integer of at least 1"),
        ((*PUBLIC, "--regularization", "0"), "regularization must be positive"),
        ((*STATISTICS, "--noise", "laplace"), "--noise means nothing"),
        ((*STATISTICS, "--matrix-share", "1"), "share"),
        ((*STATISTICS, "--rating-bound", "-1"), "rating_bound must be positive"),
        ((*STATISTICS, "--slice", "paper001"), "does not go with --slice"),
        (("--prior-count", "5"), "--prior-count means nothing to --mechanism gaussian-joint-noise"),
    ],
)
def test_refusals(capsys, words, told):
    code, err = refused(capsys, "--seed", "0", *words)
    assert code in (2, 4)
    assert told in err
    assert "fix:" in err


@pytest.mark.seconds
def test_a_saved_model_is_audited_with_its_own_settings(capsys):
    users = len({f"u{pair // 7}" for pair in PAIRS})
    factors = 0.5 * RANDOM.random((users, 2)).astype(np.float32)
    np.save("factors.npy", factors)
    words = [*PUBLIC, "--users", "factors.npy", "--seed", "0", "--test-fraction", "0"]
    fit(capsys, *words, "--out", "model")
    tried = ("sensitivity", "density")  # lookup: test_lookup.py
    audit = audited(capsys, "model", "--neighbours", "4", "--quick", "--only", *tried)
    assert (audit["steps"], audit["violated"]) == (1, 0)
    assert audit["guarantee"]["epsilon"] == 3.0
    assert "consistent" in verdicts(audit, "sensitivity")
    code, _, err = run(capsys, "audit", "model", *AUDIT, "--noise", "laplace")
    assert code == 2
    assert "another claim" in err
    ((mechanism, _),), _ = subjects.saved(Path("model"), Command(target="model"))
    np.testing.assert_array_equal(mechanism.init.args[0].user_factors, factors)


def test_the_same_seed_gives_the_same_release(capsys):
    first, second = (fit(capsys, *PUBLISHED, "--seed", "7")["out"] for _ in range(2))
    one, other = (load_file(Path(folder) / "release.safetensors") for folder in (first, second))
    assert all(np.array_equal(one[part], other[part]) for part in one)


def test_the_default_prior_is_made_of_public_numbers():
    """Sound: M·μ is 2(1 + s), s the standard deviation of the noise on a coordinate of Σur in
    quarters of the range.
    """
    settings = {
        "mechanism": "objective-public-users",
        "rating_range": [1.0, 9.0],
        "regularization": 0.01,
        "rank": 3,
        "noise": "l2_laplace",
        "delta": 0.0,
        "epsilon": 2.0,
    }
    scale = 2 * 8 / 2.0
    deviation = math.sqrt((3 + 1) * scale**2) / 2
    assert objective_spec.vector_noise(settings) == pytest.approx(deviation)
    assert objective_spec.prior_count(settings, 10) == round(2 * (1 + deviation / 2) / 0.01)
    assert objective_spec.prior_count(settings, 10) == objective_spec.prior_count(
        settings, 1_000_000
    )
    noisy = settings | {
        "mechanism": "objective-statistics",
        "delta": 1e-5,
        "rating_bound": 4.0,
        "matrix_share": 0.5,
    }
    z = prices.statistics_scales(epsilon=2.0, delta=1e-5, rating_bound=4.0)[1]
    assert objective_spec.vector_noise(noisy) == pytest.approx(z)
    assert objective_spec.prior_count({"mechanism": "objective"}, 100) == 100


@pytest.mark.slow
def test_the_published_claim_is_found_false_and_the_sound_one_is_not(capsys):
    """User factors fitted on the same ratings: one changed value moves the sums by more than Δ‖u‖
    <= Δ.
    """
    words = ["audit", "--neighbours", "4", "--json", "--rank", "3"]
    words += ["--only", "sensitivity", "privacy loss"]
    code, out, _ = run(capsys, *words, "--mechanism", "objective", "--user-passes", "10")
    assert code == 5
    broken = [one for one in json.loads(out)["findings"] if one["verdict"] == "violated"]
    assert {one["audit"].partition(":")[0] for one in broken} == {"sensitivity", "privacy loss"}
    assert broken[0]["measured"] > 2 * broken[0]["claimed"] == 8
    code, out, err = run(capsys, *words, "--mechanism", "objective-public-users")
    assert code == 0, err
    assert json.loads(out)["violated"] == 0
