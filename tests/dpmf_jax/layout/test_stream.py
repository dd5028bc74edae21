"""Streamed ratings: the sums and models of resident ones, a block on the device at a time, nothing
left behind.
"""

import dataclasses
import gc
import os
import resource
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from dpmf_jax import layout
from dpmf_jax.errors import DataError, UsageError
from dpmf_jax.layout import stream
from dpmf_jax.mechanisms import table
from dpmf_jax.training import controls
from experiments.cli import main as cli
from tests.cases import fit as fit_cases
from tests.cases import layout as cases

SMALL = 1 << 13  # bytes of a block: 32 pieces of 32 slots


@pytest.fixture
def blocks(monkeypatch, tmp_path):
    """Small blocks, in a folder of the test's own."""
    monkeypatch.setattr(stream, "BLOCK_BYTES", SMALL)
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
    # blocks that were read ahead of their turn are those of another pass
    again = cases.all_sums(data, *trees)
    cases.assert_close(again, cases.reference(ratings, *trees))


@pytest.mark.seconds
def test_a_program_holds_blocks_and_not_the_ratings(blocks):
    ratings = cases.make_ratings(np.random.default_rng(0).random((300, 200)) < 0.5)
    streamed, resident = (
        layout.make(ratings, kind=kind, num_devices=1) for kind in ("stream", "split")
    )
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


@pytest.mark.slow
def test_the_strongest_control_streams_too(blocks):
    ratings = cases.make_ratings(cases.ragged())
    ours, theirs = (
        controls.controls(ratings, ratings, names=("biased_mf",), layout_kind=kind)["biased_mf"][
            "rmse_test"
        ]
        for kind in ("split", "stream")
    )
    assert ours == pytest.approx(theirs, rel=1e-3)


# flags of a short run, of mechanisms that have them
FEW = {
    "steps": "4",
    "rounds": "3",
    "rank": "3",
}
STREAMED = [name for name, spec in table().items() if spec.access == "sums"]
QUICK = ("gaussian-joint-noise", "user-means")
# The others' sums are of whole numbers, or of one user's messages: they are the same to the bit.
FLOATS = ("gaussian", "local")


@pytest.mark.seconds
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in STREAMED],
)
def test_mechanisms_that_stream_make_the_model_of_resident_ratings(
    blocks, capsys, monkeypatch, request, name
):
    if name not in QUICK:
        request.getfixturevalue("unoptimized")
    folder = blocks / "here"
    folder.mkdir()
    fit_cases.enter(folder, monkeypatch)
    monkeypatch.setattr(stream, "BLOCK_BYTES", 1 << 10)
    known = {field.name for field in dataclasses.fields(table()[name].flags)}
    few = [word for flag, value in FEW.items() if flag in known for word in (f"--{flag}", value)]
    flags = ["--seed", "0", *fit_cases.CATALOGUE, "--mechanism", name, *few]
    flags += ["--controls", "none"]  # the strongest of them has a test above
    ours, theirs = (fit_cases.fit(capsys, *flags, "--layout", kind) for kind in ("stream", "split"))
    assert "at a time" in ours["layout"]
    assert ours["guarantee"] == theirs["guarantee"]
    measured = "recall_at_20" if table()[name].implicit else "rmse_train"
    assert ours[measured] == pytest.approx(theirs[measured], rel=1e-5)
    if name == "non-private":  # it releases nothing
        return
    released = [load_file(Path(found["out"]) / "release.safetensors") for found in (ours, theirs)]
    assert released[0].keys() == released[1].keys()
    for part, array in released[0].items():
        other = released[1][part]
        if name in FLOATS:
            np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-6, err_msg=part)
        else:
            np.testing.assert_array_equal(array, other, err_msg=part)


def test_mechanisms_that_do_not_stream_are_refused_before_anything_is_read(
    capsys, monkeypatch, tmp_path
):
    fit_cases.enter(tmp_path, monkeypatch)
    for name in (*(set(table()) - set(STREAMED)), "federated --dynamic"):
        accept = ["--accept-no-guarantee"] * (name in table() and table()[name].unsafe is not None)
        words = ["no such file", "--layout", "stream", "--mechanism", *name.split(), *accept]
        assert cli.main(["fit", *words]) == UsageError.exit_code
        assert f"--mechanism {name} needs more" in capsys.readouterr().err


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


def test_the_files_have_no_names_and_go_with_the_layout(blocks):
    """So a process that is killed leaves no ratings behind."""

    def ours():
        return [
            link
            for link in map(_link, Path("/proc/self/fd").iterdir())
            if link.startswith(str(blocks))
        ]

    data = layout.make(cases.make_ratings(cases.ragged()), kind="stream")
    assert not list(blocks.iterdir())
    if Path("/proc/self/fd").exists():
        assert len(ours()) == 6
        assert all(link.endswith("(deleted)") for link in ours())
        del data
        gc.collect()
        assert not ours()


def _link(path):
    try:
        return os.readlink(path)
    except OSError:  # the folder itself, which is being read
        return ""


@pytest.mark.parametrize("what", ["nowhere", "full"])
def test_no_room_is_said(blocks, monkeypatch, what):
    if what == "nowhere":
        monkeypatch.setattr(tempfile, "tempdir", str(Path(blocks) / "nowhere"))
    ratings = cases.make_ratings(cases.ragged())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        if what == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, before[1]))
        with pytest.raises(DataError, match=r"cannot be written: [A-Z]"):
            layout.make(ratings, kind="stream")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
