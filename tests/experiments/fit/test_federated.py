"""`dpmf fit` of paper 003 before an untrusted recommender: totals, what is released, crowds, bytes,
what is refused.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from accounting import iterations
from dpmf_jax.mechanisms.federated import spec as federated_spec
from experiments.fit import mechanisms as fit_mechanisms
from tests.cases.fit import (
    CATALOGUE,
    FIT,
    audited,
    fit,
    interrupted,
    refused,
    resumed,
    run,
    verdicts,
)

pytestmark = pytest.mark.usefixtures("elsewhere", "quick_compilation")

PUBLISHED = ["--mechanism", "federated", "--rank", "3", "--steps", "4"]
USER = ["--mechanism", "federated-user", "--steps", "4"]
STATISTICS = ["--mechanism", "federated-statistics"]
DYNAMIC = ["--dynamic", "--join", "0.6", "--leave", "0.1", "--participants", "8"]


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("words", "total", "unit", "name"),
    [
        ((*PUBLISHED, "--epsilon", "0.1"), 0.4, "rating value", "federated"),
        ((*PUBLISHED, *DYNAMIC), 0.4, "rating value", "federated-dynamic"),
        ((*USER, "--epsilon", "2"), 2.0, "user", "federated-user"),
        ((*USER, *DYNAMIC), 3.0, "user", "federated-user-dynamic"),
        ((*USER, "--change", "remove"), 3.0, "user", "federated-user"),
        (STATISTICS, 3.0, "user", "federated-statistics"),
    ],
)
def test_a_fit_states_the_true_total_and_releases_the_items_alone(capsys, words, total, unit, name):
    found = fit(capsys, *words, "--seed", "0")
    guarantee = found["guarantee"]
    published = unit == "rating value"
    assert (guarantee["epsilon"], guarantee["delta"], guarantee["unit"]) == (total, 0.0, unit)
    assert guarantee["status"] == ("claimed" if published else "proved")
    assert guarantee["mechanism"] == name
    assert guarantee["accountants"].get("paper") == (0.1 if published else None)
    assert found["steps"] == guarantee["steps"] == (1 if name == "federated-statistics" else 4)
    assert sorted(load_file(Path(found["out"]) / "release.safetensors")) == [
        "center",
        "item_factors",
    ]
    assert math.isfinite(found["rmse_test"])
    assert (found["seconds_per_step"] is None) == (
        name == "federated-statistics"
    )  # one step is the compiler's time
    assert found["utility"]
    assert "recommender" in guarantee["statement"]


def test_item_factors_alone_predict_nothing_without_the_private_folder(capsys):
    folder = Path(fit(capsys, *USER, "--seed", "0")["out"])
    words = ["predict", folder, "--user", "u1", "--item", "2"]
    assert run(capsys, *words)[0] == 0
    for file in (folder / "private").iterdir():
        file.unlink()
    code, _, err = run(capsys, *words)
    assert code == 3
    assert "user factors" in err


def test_a_saved_price_is_computed_again_with_the_papers_number(capsys):
    folder = fit(capsys, *PUBLISHED, "--seed", "0")["out"]
    code, out, err = run(capsys, "epsilon", "model", folder, "--json")
    assert code == 0, err
    told = json.loads(out)
    assert (told["epsilon"], told["paper"], told["steps"]) == (0.4, 0.1, 4)


@pytest.mark.parametrize("words", [USER, STATISTICS])
def test_a_release_per_user_needs_a_catalogue_that_no_rating_tells(capsys, words):
    code, err = refused(capsys, *words)
    assert code == 4
    assert "catalogue" in err
    found = fit(capsys, *words, *CATALOGUE)
    assert found["guarantee"]["seeded"] is False
    released = load_file(Path(found["out"]) / "release.safetensors")["item_factors"]
    assert released.shape == (9, 1)
    assert np.abs(released).min() > 0  # of unrated items too: there is noise on all


def test_as_published_who_rated_what_is_public_and_no_catalogue_is_asked_for(capsys):
    assert fit(capsys, *PUBLISHED)["guarantee"]["seeded"] is False


@pytest.mark.parametrize("more", [(), DYNAMIC])
def test_an_interrupted_run_goes_on_to_the_same_bytes(capsys, monkeypatch, more):
    """After two of four iterations: the noise that users keep and the crowd are part of the
    state.
    """
    whole = fit(capsys, *PUBLISHED, *more, "--seed", "0", "--out", "whole")

    told = interrupted(capsys, monkeypatch, *PUBLISHED, *more, "--seed", "0", "--out", "cut")
    assert "--resume cut" in told
    assert resumed(capsys, "cut")["rmse_train"] == whole["rmse_train"]
    first, second = (load_file(Path(name) / "release.safetensors") for name in ("whole", "cut"))
    assert all(np.array_equal(first[part], second[part]) for part in first)


def test_the_papers_bytes_of_a_user_with_twenty_items():
    """12 KB down (item factors, pads, pieces), 5 KB up; H and k, which the paper leaves out, are
    80·(d + 1) more.
    """
    settings = {"mechanism": "federated", "rank": 50, "steps": 10, "population": {}}
    told = federated_spec.traffic(settings, 1_000, 10_000)
    assert told["items_listed_by_a_user"] == 20
    sent = told["per_iteration"]
    assert sent["recommender to user"] == 12_000 + 80 * 51
    assert sent["user to third party"] == 80 + 20 * 50 * 4 <= 5_000
    assert sent["third party to recommender"] == 10_000 * 50 * 4 + 10_000 + 1_000 < 3_000_000
    sound = settings | {"mechanism": "federated-user", "population": None}
    assert federated_spec.traffic(sound, 1_000, 10_000)["items_listed_by_a_user"] == 10_000
    static = federated_spec.traffic(settings | {"population": None}, 1_000, 10_000)["per_iteration"]
    assert (
        sent["recommender to user"] - static["recommender to user"] == 20 * 50 * 4
    )  # the pieces of τ̂


@pytest.mark.seconds
def test_bytes_come_from_public_sizes_and_sound_users_list_the_whole_catalogue(capsys):
    found = fit(capsys, *USER, *CATALOGUE, "--rank", "2")
    sent = found["bytes"]
    assert sent["items_listed_by_a_user"] == 9
    assert sent["per_iteration"]["user to third party"] == 9 * 4 + 9 * 2 * 4
    assert fit(capsys, "--mechanism", "objective-public-users", "--seed", "0")["bytes"] is None
    triangle = fit(capsys, *STATISTICS, *CATALOGUE, "--rank", "2")["bytes"]["per_iteration"]
    assert triangle["user to third party"] == 9 * 4 + 9 * (3 + 2) * 4
    code, out, _ = run(capsys, *FIT, *USER, "--seed", "0")
    assert code == 0
    assert "bytes in an iteration" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((*PUBLISHED, "--delta", "1e-6"), "--delta means nothing to --mechanism federated"),
        ((*PUBLISHED, "--clip-norm", "2"), "--clip-norm means nothing"),
        ((*PUBLISHED, "--honest-shares", "2"), "--honest-shares means nothing"),
        ((*PUBLISHED, "--noise", "laplace"), "--noise means nothing"),
        ((*PUBLISHED, "--relation", "rating-presence", *CATALOGUE), "--relation means nothing"),
        ((*PUBLISHED, "--center", "noisy-means"), "--center noisy-means is not for"),
        ((*PUBLISHED, "--join", "0.1"), "--join goes with --dynamic"),
        ((*PUBLISHED, "--participants", "3"), "--participants goes with --dynamic"),
        ((*PUBLISHED, "--dynamic", "--join", "2"), "join must be between 0 and 1"),
        ((*PUBLISHED, "--dynamic", "--participants", "0"), "at_most must be"),
        ((*PUBLISHED[:-1], "0"), "--steps must be at least 1"),
        ((*PUBLISHED, "--epsilon", "0"), "epsilon must be positive"),
        ((*USER, "--user-passes", "3"), "--user-passes means nothing"),
        ((*USER, "--clip-norm", "0"), "clip_norm must be positive"),
        ((*USER, "--epsilon", "inf"), "epsilon must be positive and finite"),
        ((*USER, "--rounding-step", "8"), "rounding steps"),
        ((*USER, "--honest-shares", "0"), "honest_shares must be"),
        ((*USER, *DYNAMIC, "--honest-shares", "8"), "honest_shares must be below"),
        ((*USER, "--slice", "paper001"), "does not go with --slice"),
        ((*STATISTICS, "--steps", "2"), "--steps means nothing"),
        ((*STATISTICS, "--dynamic"), "--dynamic means nothing"),
        ((*STATISTICS, "--users", "users.txt"), "--users means nothing"),
        ((*STATISTICS, "--regularization", "0"), "regularization must be positive"),
        (("--dynamic",), "--dynamic means nothing to --mechanism gaussian-joint-noise"),
    ],
)
def test_refusals(capsys, words, told):
    code, err = refused(capsys, "--seed", "0", *words)
    assert code in (2, 4)
    assert told in err
    assert "fix:" in err


def test_the_papers_settings_are_the_defaults_of_what_it_published(capsys):
    flags = fit_mechanisms.flags("federated")
    ratings = _ratings(num_users=943)
    _, settings = fit_mechanisms.phases_and_settings("federated", flags, ratings)
    assert (settings["epsilon"], settings["rank"], settings["steps"]) == (0.1, 50, 100)
    assert (
        settings["learning_rate"],
        settings["regularization"],
        settings["user_regularization"],
    ) == (*(2**-5, 0.001, 0.001),)
    assert (settings["center"], settings["prior_count"], settings["population"]) == (0.0, 1, None)
    flags = fit_mechanisms.flags("federated", dynamic=True)
    assert fit_mechanisms.phases_and_settings("federated", flags, ratings)[1]["steps"] == 10_000
    assert fit_mechanisms.phases_and_settings("federated", flags, ratings)[1]["population"] == {
        "join": 0.005,
        "leave": 0.01,
        "at_most": 94,
    }
    assert (
        fit_mechanisms.phases_and_settings("federated", flags, _ratings(num_users=95_029))[1][
            "population"
        ]["at_most"]
        == 1_000
    )


def _ratings(num_users):
    from dpmf_jax.data.ratings import Ratings

    one = np.zeros(1, np.int32)
    return Ratings(
        one, one, np.ones(1, np.float32), np.arange(num_users), np.arange(52), (1.0, 5.0)
    )


def test_the_grid_is_public_and_holds_the_messages_of_all_users():
    """Neither 2,048 scales of noise nor everybody's whole message on one entry leaves 32 bits."""
    settings = {"epsilon": 3.0, "clip_norm": 2.0, "steps": 5, "change": "replace"}
    scale = iterations.iterations_scale(
        noise="laplace", epsilon=3.0, clip_norm=2.0, num_iterations=5, change="replace"
    )
    assert federated_spec.noise_scale(settings) == scale == pytest.approx(2 * 2 * 5 / 3)
    for users in (1, 100, 95_029, 10**7):
        step = federated_spec.rounding_step(settings, users)
        assert math.frexp(step)[0] == 0.5  # a power of two
        assert 2_048 * scale <= 2**31 * step
        assert 2.0 * users <= 2**31 * step
        assert step < 2 * max(scale * 2.0**-20, 2.0 * users * 2.0**-31)


def test_the_default_rate_is_bounded_by_the_noise_that_it_lets_in():
    settings = {"epsilon": 3.0, "clip_norm": 1.0, "steps": 20, "change": "replace", "rank": 2}
    scale = federated_spec.noise_scale(settings)
    many = federated_spec.item_learning_rate(settings, 52, 10**9)
    assert many == pytest.approx(4 * 52 * 2 / 20)
    few = federated_spec.item_learning_rate(settings, 52, 100)
    assert few < many
    assert few * math.sqrt(20) * math.sqrt(2) * scale / 100 == pytest.approx(0.3)


def test_sound_users_start_from_a_shared_coordinate_and_items_from_nothing():
    import jax

    from dpmf_jax import layout
    from dpmf_jax.data import synthetic

    data = layout.make(
        synthetic.generate(num_users=30, num_items=9, num_ratings=90, rank=2), num_devices=1
    )
    flags = fit_mechanisms.flags("federated-user", rank=3)
    ((mechanism, _),), _ = fit_mechanisms.phases_and_settings(
        "federated-user", flags, _ratings(num_users=30)
    )
    state = mechanism.init(jax.random.key(0), data, None)
    users = np.asarray(state.private.user_factors)
    np.testing.assert_allclose(users[:, 0], 0.5**0.5, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(users, axis=1), 1, rtol=1e-6)
    assert np.abs(users[1:] - users[0]).max() > 0.1
    np.testing.assert_array_equal(state.public.item_factors, 0)


@pytest.mark.slow
def test_a_saved_model_is_audited_with_its_own_settings(capsys):
    fit(capsys, *USER, *DYNAMIC, "--seed", "0", "--test-fraction", "0", "--out", "model")
    tried = ("density", "post-processing", "privacy loss")
    audit = audited(capsys, "model", "--neighbours", "4", "--quick", "--only", *tried)
    assert (audit["steps"], audit["violated"]) == (4, 0)
    assert audit["guarantee"]["epsilon"] == 3.0
    assert "consistent" in verdicts(audit, "density")
