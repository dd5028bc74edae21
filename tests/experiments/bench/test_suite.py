"""Growth curves and the suite: exponents, one model on any number of devices, a page of nothing but
results.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmf_jax.errors import DataError, UsageError
from experiments.bench import generated, goals, gpu, measure, roofline, scale, suite
from experiments.cli import console
from experiments.cli import main as cli
from tests.cases import CHECKOUT


def test_exponents_are_slopes():
    rows = [{"curve": "c", "value": v, "ms": 3 * v**1.5} for v in (1, 10, 100)] + [
        {"curve": "d", "value": 1, "ms": 2}
    ]
    assert scale.exponents(rows, "c") == pytest.approx({"all": 1.5, "last": 1.5})
    assert scale.exponents(rows, "d") == {"all": None, "last": None}


def test_several_devices_that_compute_something_else_are_an_error():
    one = [np.ones((3, 2)), np.ones((4, 2))]
    assert scale._difference(one, one) == 0
    with pytest.raises(FloatingPointError, match="do not compute the same"):
        scale._difference(one, [one[0], one[1] + 1e-5])


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compilation")
def test_every_curve_has_its_points(monkeypatch):
    monkeypatch.setitem(generated.SIZES, "ml-1m", (60, 40, 600))
    for name, values in {
        "RATINGS": (2_000, 4_000),
        "USERS": (50, 60),
        "RANKS": (2, 3),
        "CONFIGURATIONS": (1, 2),
    }.items():
        monkeypatch.setattr(scale, name, values)
    told = scale.run(2, 2, 4_000, num_devices=1)
    curves = [row["curve"] for row in told["rows"]]
    assert [
        curves.count(c) for c in ("ratings", "ratings, streamed", "users", "rank", "configurations")
    ] == [2] * 5
    assert curves.count("devices, the same ratings") == 1  # there is one
    assert all(row["ms"] > 0 and row["fraction"] > 0 for row in told["rows"])
    with pytest.raises(UsageError):
        scale.run(0)


def test_the_floor_is_the_larger_of_both():
    counted, machine = {"flops": 4e9, "bytes": 1e9}, {"gemm_gflop_s": 100.0, "copy_gb_s": 10.0}
    found = roofline.floor("a step", counted, machine, 200.0)
    assert (found["of"], found["bound_by"]) == ("a step", "memory")
    assert (found["floor_ms"], found["fraction"]) == (pytest.approx(100), pytest.approx(0.5))
    found = roofline.floor("a step", counted | {"bytes": 1.0}, machine, 80.0)
    assert (found["floor_ms"], found["bound_by"], found["fraction"]) == (
        pytest.approx(40),
        "arithmetic",
        pytest.approx(0.5),
    )
    assert roofline.step(10, 20, 300, 4, 1_000) == {
        "flops": 8 * 4 * 300,
        "bytes": 1_000 + 2 * 4 * 4 * 30,
    }


def step_result(ours: float, others: float = 0.0):
    rows = [
        {"contender": name, "ms": ms, "compile_ms": 900, "peak_mb": 10, "ratio": None}
        for name, ms in (
            ("jax", ours),
            ("jax private step", 12.0),
            ("torch CSR", 10.0),
            ("scipy", 50.0),
        )
    ]
    return {
        "rows": rows,
        "noise_share": 0.2,
        "others": others,
        "cores": 2,
        "device": "a device",
        "versions": {},
    }


def test_compilation_is_what_jax_says_it_took_and_not_the_run():
    def program(x):
        time.sleep(0.1)  # while it is traced
        return jnp.sin(x) + 1

    two = [jax.jit(lambda x, shift=shift: program(x) + shift) for shift in (1, 2)]

    def call():
        time.sleep(0.05)  # before they are called, both at once
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda compiled: compiled(np.ones(3)).block_until_ready(), two))

    start = time.perf_counter()
    seconds = measure.compiling(call)
    assert 0.1 <= seconds <= time.perf_counter() - start - 0.05
    assert measure.compiling(call) == 0


@pytest.mark.slow
def test_what_a_gpu_is_asked_can_be_tried_out_on_a_cpu(monkeypatch, tmp_path):
    monkeypatch.setitem(generated.SIZES, "ml-100k", (60, 40, 600))
    monkeypatch.setenv("DPMF_DATA", str(tmp_path))  # no ratings, so no curves, which take hours
    told = gpu.run(
        2,
        sizes=("ml-100k",),
        ranks={"ml-100k": (3,)},
        side=64,
        num_draws=1_000,
        labels="001 sound: joint noise;004 Private GD",
        any_backend=True,
        limit=1e6,
    )
    assert {row["label"] for row in told["bits"] if row["layout"]} == {
        "001 sound: joint noise",
        "004 Private GD",
    }
    assert all(row["again"] and row["as_cpu"] and row["apart"] == 0 for row in told["bits"])
    assert all(row["other_layout"] for row in told["bits"] if row["layout"])
    assert not any(row["failed"] for row in told["bits"])
    assert {(row["rank"], row["generator"]) for row in told["steps"]} == {
        (3, generator) for generator in ("threefry", "chacha20")
    }
    assert [(row["rank"], row["layout"]) for row in told["rows"]] == [
        (3, kind) for kind in ("split", "dense")
    ]
    assert sum(row["fastest"] for row in told["rows"]) == 1
    assert all(row["same_bits"] and row["ms"] > 0 for row in told["rows"])
    assert [row["precision"] for row in told["products"]] == ["float32", "tensorfloat32"]
    assert not any(row["step_changes"] for row in told["products"])
    assert all(row["error"] < 1e-5 for row in told["products"])  # a CPU has no other precision
    assert "sweep" in [row["contender"] for row in told["sweep"]]
    assert (told["left_out"], told["curves"]) == ([], [])
    (tmp_path / "gpu.json").write_text(json.dumps(console.plain(told)))
    assert "`dpmf bench --gpu`" in suite.page(suite.load(tmp_path), [], "results")
    late = gpu.run(
        1, sizes=("ml-100k",), ranks={"ml-100k": (3,)}, side=64, any_backend=True, limit=-1
    )
    assert late["rows"] == []
    assert late["left_out"] == [
        "bits",
        "draws",
        "steps, rank 3, ml-100k",
        "split, rank 3, ml-100k",
        "dense, rank 3, ml-100k",
        "products",
        "sweep",
        "curves of paper 001",
    ]


def test_a_gpu_is_asked_where_there_is_one(capsys):
    if jax.default_backend() == "cpu":
        assert cli.main(["bench", "--gpu"]) == 4
        assert "there is no accelerator" in capsys.readouterr().err
    assert cli.main(["bench"]) == 2
    assert cli.main(["bench", "step", "--gpu"]) == 2


def test_a_gpus_goals_take_the_fastest_layout():
    rows = [
        {"size": "ml-1m", "rank": rank, "ms": ms}
        for rank, ms in ((20, 0.09), (20, 0.05), (512, 0.7))
    ]
    found = {row["what"]: row for row in goals.rows({"gpu": {"rows": rows, "curves": []}})}
    assert found["H200, 1M, rank 20, private step: ms"]["met"]
    assert found["H200, 1M, rank 512, private step: ms"]["met"] is False
    assert found["H200, all MovieLens curves of paper 001: s"]["met"] is None


def test_goals_are_met_missed_or_not_measured():
    rows = {
        row["what"]: row
        for row in goals.rows({"step-20": step_result(10.5), "step-64": step_result(30.0)})
    }
    assert rows["step, rank 20, 1M: to torch CSR"] | {"why": ""} == {
        "what": "step, rank 20, 1M: to torch CSR",
        "goal": 1.1,
        "found": 1.05,
        "met": True,
        "why": "",
    }
    missed = rows["step, rank 64, 1M: to torch CSR"]
    assert (missed["found"], missed["met"], missed["why"]) == (3.0, False, goals.GATHER)
    assert rows["noise, share of the private step"]["met"] is False
    for absent in ("step, rank 20, 1M: to numba (stretch)", "sweep of 16: to separate runs"):
        assert (rows[absent]["met"], rows[absent]["why"]) == (None, "not measured")
    assert all(row["met"] is None for what, row in rows.items() if "H200" in what)


def test_every_goal_that_needs_no_gpu_is_found_in_the_results_that_are_kept():
    kept = CHECKOUT / "docs" / "performance"
    rows = [*goals.rows(suite.load(kept))]
    assert [row["what"] for row in rows if row["found"] is None and "H200" not in row["what"]] == []
    page = kept.with_name("performance.md").read_text()
    assert page == suite.page(suite.load(kept), rows, kept.name)


def test_a_folder_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        with pytest.raises(DataError, match="folder"):
            suite.run(tmp_path / place)


def test_a_page_is_made_of_the_files_that_are_there(tmp_path):
    curve = [{"curve": "ratings", "value": v, "ms": v / 1e3, "difference": None} for v in (10, 100)]
    grown = {"rows": curve, "exponents": {"ratings": {"all": 1.0, "last": 1.0}}, "others": 0.5}
    (tmp_path / "step-20.json").write_text(
        json.dumps(step_result(11.5) | {"command": "dpmf bench step --rank 20"})
    )
    (tmp_path / "scale.json").write_text(json.dumps(grown))
    results = suite.load(tmp_path)
    text = suite.page(results, [*goals.rows(results)], "results")
    assert "| step, rank 20, 1M: to torch CSR | 1.1 | 1.15 | **no** |" in text
    assert "more than 10% of the machine during: scale" in text
    assert "`dpmf bench step --rank 20`" in text
    assert "a device" in text
    assert "Machine: 2 cores; a processor; a device" in suite.page(
        {"step-20": step_result(11.5) | {"processor": "a processor"}}, [], "results"
    )
    assert "(results/scale.svg)" in text
    pictures = dict(suite.pictures(results))
    assert pictures["scale.svg"].lstrip().startswith("<?xml")
    assert "<script" not in pictures["scale.svg"]
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(DataError, match="no result"):
        suite.load(tmp_path)


def test_what_is_there_is_kept_and_a_part_that_fails_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(
        suite, "PARTS", {"step-20": ["step"], "read": ["read", "--num-ratings", "-1"]}
    )
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "step-20.json").write_text(json.dumps(step_result(11.5)))
    said: list[str] = []
    told = suite.run(tmp_path / "results", say=said.append)
    assert said == ["bench read --num-ratings -1"]
    assert list(told["failed"]) == ["read"]
    assert json.loads((tmp_path / "results" / "step-20.json").read_text()) == step_result(11.5)
    assert told["out"] == str(tmp_path / "results.md")
    assert "How fast" in (tmp_path / "results.md").read_text()
