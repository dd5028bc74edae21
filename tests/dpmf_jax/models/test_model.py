"""A saved model: only the release outside private/, refused when changed, clear about what is
missing.
"""

import dataclasses
import json
import shutil
import stat

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import dpmf_jax
from dpmf_jax import load_model
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import DataError, UsageError
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian

CONFIG = gaussian.Config(rating_range=(1, 5), noise_multiplier=20.0, rank=3, learning_rate=0.01)
RANDOM = np.random.default_rng(0)
PAIRS = RANDOM.choice(12 * 7, size=50, replace=False)
USER, ITEM, VALUE = PAIRS // 7 + 100, PAIRS % 7, RANDOM.integers(1, 6, 50)
RATINGS = Ratings.from_columns(USER, ITEM, VALUE, rating_range=(1, 5), name="tiny")


def fit(factory, out, ratings=RATINGS, **options):
    options = {"num_steps": 5, "seed": 0} | options
    return dpmf_jax.fit(ratings, factory(CONFIG), out=out, **options)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        name: fit(factory, folder / name)
        for name, factory in (("published", gaussian.mechanism), ("joint", gaussian.joint_noise))
    }


@pytest.fixture
def folder(saved, tmp_path):
    shutil.copytree(saved["published"].path, tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.seconds
def test_only_the_release_stands_outside_private(saved):
    outside = {path.name for path in saved["published"].path.iterdir()}
    assert outside == {"model.json", "PRIVACY.md", "release.safetensors", "private"}
    assert set(load_file(saved["published"].path / "release.safetensors")) == {"user_factors"}
    assert set(load_file(saved["joint"].path / "release.safetensors")) == {
        "user_factors",
        "item_factors",
        "center",
    }


@pytest.mark.seconds
def test_private_files_are_open_to_their_owner_alone(saved):
    private = saved["published"].path / "private"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in private.rglob("*")} == {0o600}


def test_public_files_do_not_depend_on_the_ratings_but_through_the_release(saved, tmp_path):
    changed = Ratings.from_columns(USER, ITEM, 6 - VALUE, rating_range=(1, 5), name="tiny")
    other = fit(gaussian.mechanism, tmp_path / "other", changed)
    ours, theirs = (
        json.loads((m.path / "model.json").read_text()) for m in (saved["published"], other)
    )
    for content in (ours, theirs):
        del content["files"], content["sha256"]
    assert ours == theirs
    text = [(m.path / "PRIVACY.md").read_text() for m in (saved["published"], other)]
    assert text[0] == text[1] == f"# Privacy statement\n\n```\n{other.guarantee}\n```\n"


def test_round_trip(saved):
    for model in saved.values():
        loaded = load_model(model.path)
        assert loaded.guarantee == model.guarantee
        np.testing.assert_array_equal(loaded.predict(USER, ITEM), model.predict(USER, ITEM))
        assert loaded.recommend(100) == model.recommend(100)
        assert loaded.metrics == model.metrics


def test_predictions_take_ids_as_numbers_or_text_and_stay_in_range(saved):
    model = saved["published"]
    np.testing.assert_array_equal(
        model.predict([str(u) for u in USER], [str(i) for i in ITEM]), model.predict(USER, ITEM)
    )
    whole = model.factors
    u, i = USER - 100, ITEM
    expected = whole.center[i] + (whole.user_factors[u] * whole.item_factors[i]).sum(1)
    np.testing.assert_allclose(
        model.predict(USER, ITEM, clip=False), expected, rtol=1e-6, atol=1e-6
    )
    assert model.predict(USER, ITEM).min() >= 1
    assert model.predict(USER, ITEM).max() <= 5


@pytest.mark.parametrize("user", [99, "ninety", "", "1e2", -100, 10**30])
def test_an_unknown_user_gets_a_clear_answer(saved, user):
    with pytest.raises(DataError, match="unknown user"):
        saved["published"].recommend(user)
    with pytest.raises(DataError, match="unknown user"):
        saved["published"].predict([user], [0])


def test_recommendations_are_unseen_ordered_and_complete(saved):
    for user in np.unique(USER):
        found = saved["published"].recommend(user, 100)
        rated = set(ITEM[user == USER].tolist())
        assert {item for item, _ in found} == set(range(7)) - rated
        scores = [score for _, score in found]
        assert scores == sorted(scores, reverse=True)
        assert len(saved["published"].recommend(user, 100, include_seen=True)) == 7
        assert saved["published"].recommend(user, 2) == found[:2]
    with pytest.raises(UsageError, match="at least 1"):
        saved["published"].recommend(100, 0)


@pytest.mark.parametrize(
    "kind", [list, tuple, np.array, lambda users: [str(user) for user in users]]
)
def test_several_users_get_a_table_with_a_user_column(saved, kind):
    model = saved["joint"]
    users = [101, 100, 101, 107]
    table = model.recommend(kind(users), 3)
    assert table.column_names == ["user", "item", "predicted_rating"]
    rows = [(user, item, rating) for user in users for item, rating in model.recommend(user, 3)]
    assert list(zip(*(table[name].to_pylist() for name in table.column_names), strict=True)) == rows
    assert model.recommend(kind([101]), 2)["user"].to_pylist() == [101, 101]
    assert model.recommend([], 3).num_rows == 0


def test_an_unknown_user_among_several_is_named(saved):
    with pytest.raises(DataError, match="unknown user 999") as refused:
        saved["joint"].recommend([100, 999, 101])
    assert "model knows" in str(refused.value)


def test_a_prediction_takes_single_ids_and_one_user_for_many_items(saved):
    model = saved["joint"]
    several = model.predict([100, 100, 100], [0, 1, 2])
    assert several.shape == (3,)
    one = model.predict(100, 1)
    assert isinstance(one, float)
    assert one == several[1]
    np.testing.assert_array_equal(model.predict(100, [0, 1, 2]), several)
    np.testing.assert_array_equal(model.predict([100, 101], 2), model.predict([100, 101], [2, 2]))
    assert model.predict([], []).shape == (0,)
    with pytest.raises(UsageError, match="2 users for 3 items"):
        model.predict([100, 101], [0, 1, 2])


def test_evaluation_leaves_out_and_counts_what_it_does_not_know(saved):
    test = Ratings.from_columns(
        [100, 100, 555, 101], [0, 99, 1, 3], [3, 4, 5, 1], rating_range=(1, 5), name="other ids"
    )
    result = saved["published"].evaluate(test)
    assert result["unknown"] == 2
    assert result["ratings"] == 2
    expected = saved["published"].predict([100, 101], [0, 3]) - np.array([3, 1])
    assert (result["seen"], result["unseen"], result["rmse"]) == (2, 0, None)
    assert result["rmse_seen"] == pytest.approx(np.sqrt(np.mean(expected**2)), rel=1e-6)
    strangers = Ratings.from_columns([1, 2], [8, 9], [3, 4], rating_range=(1, 5), name="strangers")
    with pytest.raises(DataError, match="catalogue"):
        saved["published"].evaluate(strangers)


def test_without_its_private_part_a_model_names_the_file_it_misses(folder, saved):
    shutil.rmtree(folder / "private")
    public = load_model(folder)
    with pytest.raises(DataError, match="item factors") as caught:
        public.predict([100], [0])
    assert "factors.safetensors" in caught.value.where
    joint = folder.parent / "joint"
    shutil.copytree(saved["joint"].path, joint)
    shutil.rmtree(joint / "private")
    np.testing.assert_array_equal(
        load_model(joint).predict(USER, ITEM), saved["joint"].predict(USER, ITEM)
    )
    with pytest.raises(DataError, match="seen"):
        load_model(joint).recommend(100)
    assert len(load_model(joint).recommend(100, include_seen=True)) == 7


def edit_json(path, name, value):
    content = json.loads(path.read_text())
    content[name] = value
    path.write_text(json.dumps(content))


TAMPERED = {
    "release truncated": (
        lambda f: (f / "release.safetensors").write_bytes(
            (f / "release.safetensors").read_bytes()[:-1]
        )
    ),
    "release changed": (
        lambda f: (f / "release.safetensors").write_bytes(
            (f / "release.safetensors").read_bytes()[:-1] + b"x"
        )
    ),
    "release missing": lambda f: (f / "release.safetensors").unlink(),
    "factors truncated": lambda f: (f / "private/factors.safetensors").write_bytes(b"\x08"),
    "seen empty": lambda f: (f / "private/seen.safetensors").write_bytes(b""),
    "guarantee edited": lambda f: edit_json(f / "model.json", "guarantee", {"epsilon": 0.1}),
    "range edited": lambda f: edit_json(f / "model.json", "rating_range", [1, 10]),
    "format edited": lambda f: edit_json(f / "model.json", "format", 3),
    "no json": lambda f: (f / "model.json").write_text("{"),
    "json is a list": lambda f: (f / "model.json").write_text("[]"),
    "json not text": lambda f: (f / "model.json").write_bytes(b"\xff\xfe\x00"),
    "no model.json": lambda f: (f / "model.json").unlink(),
    "curator edited": lambda f: edit_json(f / "private/curator.json", "metrics", {}),
    "no folder": shutil.rmtree,
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_changed_or_cut_file_is_refused_by_name(folder, name):
    TAMPERED[name](folder)
    with pytest.raises(DataError) as caught:
        load_model(folder)
    assert caught.value.where
    assert caught.value.fix
    assert caught.value.exit_code == 3


def test_a_save_never_overwrites(folder):
    before = (folder / "model.json").read_bytes()
    with pytest.raises(UsageError, match="overwrites"):
        load_model(folder).save(folder)
    assert (folder / "model.json").read_bytes() == before


def test_a_save_stays_out_of_folders_that_hold_other_things(folder, tmp_path):
    """A table of ratings beside a model would count as what may be shown."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "ratings.csv").write_text("user,item,rating\n")
    with pytest.raises(UsageError, match="the folder holds something else"):
        load_model(folder).save(mine)
    assert [one.name for one in mine.iterdir()] == ["ratings.csv"]
    load_model(folder).save(tmp_path / "new")


@pytest.mark.parametrize("name", ["factors", "seen"])
def test_a_private_file_that_is_readable_but_another_is_refused(folder, name):
    path = folder / "private" / f"{name}.safetensors"
    save_file(
        {
            key: np.ascontiguousarray(part[::-1]) if part.ndim else part
            for key, part in load_file(path).items()
        },
        path,
    )
    with pytest.raises(DataError, match=name):
        load_model(folder)


def test_recommended_ratings_stay_in_range(saved):
    model = saved["published"]
    far = model.factors._replace(user_factors=100 * model.factors.user_factors)
    found = dataclasses.replace(model, factors=far).recommend(100, 100, include_seen=True)
    ratings = [rating for _, rating in found]
    assert min(ratings) == 1
    assert max(ratings) == 5


def test_evaluation_ranks_what_was_not_seen(saved):
    model = saved["published"]
    users = [u for u in np.unique(USER) if (u == USER).sum() < 7][:2]
    pairs = [(u, i) for u in users for i in sorted(set(range(7)) - set(ITEM[u == USER].tolist()))]
    rest = Ratings.from_columns(
        *zip(*pairs, strict=True), [5] * len(pairs), rating_range=(1, 5), name="rest"
    )
    assert model.evaluate(rest, k=7)["recall_at_k"] == 1
    assert (
        model.evaluate(rest, k=1)["ndcg_at_k"] == 1
    )  # whatever is first among the unseen was held out
