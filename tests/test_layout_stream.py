"""Streamed ratings: the sums and models of resident ones, a block on the device at a time, nothing left behind."""

import dataclasses
import gc
import os
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_layout as cases

import dpmf_jax
from dpmf_jax import controls, gaussian, layout, layout_stream
from dpmf_jax.errors import DataError, UsageError

SMALL = 1 << 13  # bytes of a block: 32 pieces of 32 slots


@pytest.fixture
def blocks(monkeypatch, tmp_path):
    """Small blocks, in a folder of the test's own."""
    monkeypatch.setattr(layout_stream, "BLOCK_BYTES", SMALL)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", cases.MASKS)
def test_sums_equal_a_dense_reference(blocks, name):
    ratings = cases.make_ratings(cases.MASKS[name]())
    trees = cases.factors(ratings)
    data = layout.make(ratings, kind="stream")
    if name == "ragged":  # several blocks, the last one not full
        sides = data.stored.sides
        assert all(side.num > 1 for side in sides)
        assert any(side.total % side.pieces for side in sides)
    cases.assert_close(cases.all_sums(data, *trees), cases.reference(ratings, *trees))
    again = cases.all_sums(data, *trees)  # blocks that were read ahead of their turn are those of another pass
    cases.assert_close(again, cases.reference(ratings, *trees))


def test_a_program_holds_blocks_and_not_the_ratings(blocks):
    ratings = cases.make_ratings(np.random.default_rng(0).random((300, 200)) < 0.5)
    streamed, resident = (layout.make(ratings, kind=kind, num_devices=1) for kind in ("stream", "split"))
    assert not jax.tree.leaves(streamed)
    assert streamed.stored.nbytes < sum(leaf.nbytes for leaf in jax.tree.leaves(resident)) / 10
    trees = cases.factors(ratings)

    def held(data):
        return jax.jit(cases.all_sums.__wrapped__).lower(data, *trees).compile().memory_analysis()

    stream, whole = held(streamed), held(resident)
    ratings_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(resident))
    assert whole.argument_size_in_bytes - stream.argument_size_in_bytes == ratings_bytes
    assert stream.temp_size_in_bytes < ratings_bytes / 4
    assert "MB at a time" in layout.describe(streamed)


def test_a_fit_is_that_of_resident_ratings(blocks):
    ratings = cases.make_ratings(cases.ragged())
    ratings = dataclasses.replace(ratings, rating_range=(0.5, 5.0))
    config = gaussian.Config(
        rating_range=ratings.rating_range, noise_multiplier=20.0, rank=3, learning_rate=0.01, center=3.0
    )
    found = [
        dpmf_jax.fit(
            ratings,
            gaussian.joint_noise(config),
            num_steps=5,
            chunk_steps=5,
            seed=0,
            layout_kind=kind,
            num_devices=1,
        )
        for kind in ("split", "stream")
    ]
    one, other = (model.release for model in found)
    for part, streamed in zip(one, other, strict=True):
        if part is not None:
            np.testing.assert_allclose(streamed, part, rtol=1e-5, atol=1e-6)
    assert str(found[0].guarantee) == str(found[1].guarantee)


@pytest.mark.slow
def test_the_strongest_control_streams_too(blocks):
    ratings = cases.make_ratings(cases.ragged())
    ours, theirs = (
        controls.controls(ratings, ratings, names=("biased_mf",), layout_kind=kind)["biased_mf"]["rmse_test"]
        for kind in ("split", "stream")
    )
    assert ours == pytest.approx(theirs, rel=1e-3)


def test_what_needs_the_ratings_in_place_is_refused(blocks):
    ratings = cases.make_ratings(cases.ragged())
    data = layout.make(ratings, kind="stream")
    users, items, _ = cases.factors(ratings)
    every = (
        lambda: layout.map_ratings(data, cases.residuals, users, items),
        lambda: layout.fold_by_user(data, cases.by_user, users, users, items),
        lambda: layout.outer_by_item(data, cases.by_item, items, users),
        lambda: layout.stored_values(data),
        lambda: layout.locate(data, ratings.user[0], ratings.item[0]),
        lambda: layout.remove_user(data, jnp.int32(0)),
        lambda: layout.make(ratings, kind="stream", num_devices=2),
    )
    for ask in every:
        with pytest.raises(UsageError, match="streamed"):
            ask()


def test_the_files_are_private_and_go_with_the_layout(blocks):
    data = layout.make(cases.make_ratings(cases.ragged()), kind="stream")
    [folder] = blocks.iterdir()
    assert os.stat(folder).st_mode & 0o077 == 0
    assert len(list(folder.iterdir())) == 6
    del data
    gc.collect()
    assert not folder.exists()


def test_no_room_is_said(blocks, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(Path(blocks) / "nowhere"))
    with pytest.raises(DataError, match="cannot be written"):
        layout.make(cases.make_ratings(cases.ragged()), kind="stream")
