"""Programs for an accelerator that is not here: they compute the same."""

import importlib.util
import json
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmf_jax import layout, protocol
from dpmf_jax.devices import spread
from dpmf_jax.kernels import projection
from dpmf_jax.layout import outer
from dpmf_jax.mechanisms.sketch import dpsgd as sketch_dpsgd
from dpmf_jax.noise import keys
from experiments.bench import goals, measure, suite
from experiments.cli import main as cli
from tests.cases import CHECKOUT
from tests.cases import layout as cases
from tests.zoo import sound as zoo_sound

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture
def accelerated(monkeypatch):
    """Programs are made as an accelerator has them, and run on the CPU all the same."""
    jax.clear_caches()
    monkeypatch.setattr(spread, "backend", lambda: "gpu")
    yield
    monkeypatch.undo()
    jax.clear_caches()


def held_up(jaxpr):
    """Shapes of what passes a barrier, in a program and in those within it."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "optimization_barrier":
            yield from (var.aval.shape for var in equation.invars)
        for inner in jax.tree.leaves(
            equation.params, is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr")
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from held_up(inner)


@pytest.mark.parametrize("name", cases.MASKS)
def test_sums_of_an_accelerators_program_equal_a_dense_reference(name, accelerated):
    ratings = cases.make_ratings(cases.MASKS[name]())
    trees = cases.factors(ratings)
    data = layout.make(ratings, kind="split", num_devices=1)
    cases.assert_close(cases.all_sums(data, *trees), cases.reference(ratings, *trees))


def test_an_accelerator_gathers_again_what_a_cpu_keeps(accelerated):
    ratings = cases.make_ratings(cases.ragged())
    users, items, center = cases.factors(ratings, rank=5)
    data = layout.make(ratings, kind="split", num_devices=1)
    pieces, width = data.stored.by_user.column.shape

    def shapes():
        program = jax.make_jaxpr(
            lambda data: layout.sum_by_user(data, cases.by_user, users, columns)
        )(data)
        return [*held_up(program.jaxpr)]

    columns = {"factors": items, "center": center}
    assert sorted(shapes()) == sorted(
        [(pieces, 5), (pieces,), (pieces,)]
    )  # what each piece makes, no row of a rating
    spread.backend = jax.default_backend
    assert any(shape[-2:] == (width, 5) for shape in shapes())


@pytest.mark.seconds
@pytest.mark.parametrize(
    "name",
    [
        "gaussian-joint-noise",
        "local-gd-dr",
        "objective-statistics",
        "sketch-dpsgd",
        "federated-user-dynamic",
    ],
)
def test_a_model_trained_as_on_an_accelerator_is_the_same(name, request, monkeypatch):
    for module, size in (
        (projection, "LIFT_ENTRIES"),
        (outer, "BLOCK_PIECES"),
        (sketch_dpsgd, "BLOCK"),
    ):
        monkeypatch.setattr(module, size, 16)  # so that there are several on a CPU
    mechanism = zoo_sound.SOUND[name]()

    def trained():
        data = layout.make(zoo_sound.RATINGS, kind="split", num_devices=1)
        state = protocol.begin(mechanism, keys.from_seed(0), data)
        return jax.tree.leaves(
            protocol.train(mechanism, keys.from_seed(1), state, data, zoo_sound.steps(name))
        )

    jax.clear_caches()
    here = trained()
    request.getfixturevalue("accelerated")
    for one, other in zip(here, trained(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_programs_made_for_other_devices_are_not_taken_for_ours():
    padded = jax.jit(lambda factors: layout.pad_rank(factors))
    wide = padded(jnp.ones((4, 20))).shape
    with spread.compiling_for([SimpleNamespace(platform="gpu")] * 2):
        assert (spread.backend(), len(spread.devices())) == ("gpu", 2)
        assert padded(jnp.ones((4, 20))).shape == (4, 20)
        assert spread.block(3) == 3 * spread.LARGER
    assert spread.block(3) == 3
    assert padded(jnp.ones((4, 20))).shape == wide == (4, 24)
    assert (spread.backend(), spread.devices()) == (jax.default_backend(), jax.devices())


def test_without_jaxs_plugin_it_says_what_to_install():
    if importlib.util.find_spec("jax_plugins") is not None:
        pytest.skip(
            "jax's CUDA plugin is installed, so there is nothing to refuse; the test below is"
            " for it"
        )
    command = [sys.executable, "-m", "experiments.cli", "bench", "--gpu", "--compile-only"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (4, "")
    assert "fix: make cuda" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_table_of_a_result_is_shown_as_one():
    """On the page and on the terminal: no list of rows among the words."""
    kept = suite.load(CHECKOUT / "docs" / "performance")
    lists = {
        field
        for told in kept.values()
        for field, value in told.items()
        if isinstance(value, list) and any(isinstance(row, dict) for row in value)
    }
    assert lists <= set(measure.TABLES)


def hold_paper_001_to_its_order(rows):
    """As published, the pieces of a row in the split layout are added as they come; sound, none."""
    rows = [row for row in rows if row["label"].startswith("001")]
    assert {"sound" in row["label"] for row in rows} == {True, False}
    for row in rows:
        expected = "sound" not in row["label"] and row["layout"] == "split"
        assert row["unordered"] == expected, row


def test_the_record_says_what_the_page_on_trust_says():
    kept = suite.load(CHECKOUT / "docs" / "performance")["gpu-compiled"]["mechanisms"]
    hold_paper_001_to_its_order(kept)
    sound = {row["label"] for row in kept if row["unordered"] and "sound" in row["label"]}
    assert {label for label in sound if "federated" not in label} == {
        "002 sound: DP-SGD",
        "002 sound: Langevin",
        "002 sound: sketch, DP-SGD",
        "003 sound: objective, statistics",
    }


def test_compiling_alone_is_for_a_gpu(capsys):
    assert cli.main(["bench", "step", "--compile-only"]) == 2
    assert "dpmf bench --gpu --compile-only" in capsys.readouterr().err


ASKED = """
import json, sys
from experiments.cli import console
from experiments.bench import compiled
labels = ("001 as published, C = 0.25", "001 sound: joint noise", "002 as published: sketch",
    "004 Private GD-DR")
told = compiled.run(sizes=("ml-100k",), ranks={"ml-100k": (20,)}, large="ml-100k", labels=labels)
json.dump(console.plain(told), sys.stdout)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("jax_plugins") is None, reason="needs jax's CUDA plugin: make cuda"
)
def test_what_a_gpu_would_be_given(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ASKED], capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    split, dense = told["rows"]
    assert (split["layout"], dense["layout"]) == ("split", "dense")
    gathered_mb = 1.3 * 100_000 * 20 * 4 / 2**20  # of one orientation
    assert split["temporary_mb"] < gathered_mb / 5
    assert split["moved_mb"] < dense["moved_mb"]
    assert 10 < split["kernels"] < 40
    assert told["ordered"][0]["kernels"] > split["kernels"]
    alone, plan = told["plan"]
    assert (alone["devices"], alone["exchanged_mb"]) == (1, 0)
    assert plan["temporary_mb"] < alone["temporary_mb"] / 6
    assert plan["exchanged_mb"] < 1.2 * 2 * 50_000 * 64 * 4 / 2**20  # the items' sums in two parts
    assert plan["temporary_mb"] + plan["arguments_mb"] < 20_000
    refused = [row for row in told["mechanisms"] if row["refused"]]
    assert {(row["label"], row["devices"]) for row in refused} == {("002 as published: sketch", 8)}
    assert len(told["mechanisms"]) == 16
    hold_paper_001_to_its_order(told["mechanisms"])
    assert [row["label"] for row in told["large"]] == [
        "001 sound: joint noise",
        "004 Private GD-DR",
    ]
    assert all(row["kernels"] < 100 for row in told["large"])
    (tmp_path / "gpu-compiled.json").write_text(done.stdout)
    page = suite.page(suite.load(tmp_path), [*goals.rows(suite.load(tmp_path))], "results")
    assert "nothing was run" in page
    assert "| H200, 1M, rank 20, private step: ms | 0.06 | - | - | not measured |" in page
