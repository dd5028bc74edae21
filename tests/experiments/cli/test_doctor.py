"""The doctor's report, and that its self-test sees what it is there to see."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.cli import doctor, selftest


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> dict:
    """`dpmf doctor --json` in a process of its own, on a data folder with one data set in it."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "ml-100k").mkdir()
    words = [
        "-m",
        "experiments.cli",
        "doctor",
        "--json",
        "--data-dir",
        str(folder),
        "--devices",
        "2",
    ]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout) | {"given": str(folder)}


@pytest.mark.seconds
def test_everything_is_reported(report):
    assert report["versions"]["jax"]
    assert set(report["extras"]) == {"report", "test", "lint", "bench"}
    assert report["cores"] >= 1
    assert report["data"] == {
        "folder": report["given"],
        "named_by": "--data-dir",
        "found": ["ml-100k"],
    }
    assert report["programs"]["folder"] == os.environ["JAX_COMPILATION_CACHE_DIR"]
    assert report["programs"]["bytes"] > 0
    if report["backend"] == "cpu":
        assert report["devices_used"] == len(report["devices"]) == 2


def test_the_self_test_passes(report):
    assert report["passed"]
    assert [check["name"] for check in report["self_test"]] == list(selftest.QUESTIONS)


def test_the_text_says_what_the_object_says(report):
    text = doctor.render(report)
    assert all(f"{number}" in text for number in report["versions"].values())
    assert text.count("  ok ") == len(selftest.QUESTIONS)
    assert text.endswith("all is well")
    assert f"{report['programs']['folder']}: " in text
    assert "programs       none are kept: " in doctor.render(
        report | {"programs": {"folder": None, "bytes": 0}}
    )
    broken = report | {
        "passed": False,
        "self_test": [{"name": "a price", "passed": False, "detail": "off by 2"}],
    }
    assert "  FAILED  a price (off by 2)" in doctor.render(broken)
    assert "all is well" not in doctor.render(broken)


def test_what_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("DPMF_DATA", raising=False)
    assert doctor.data(None) == {"folder": None, "named_by": None, "found": []}
    monkeypatch.setenv("DPMF_DATA", str(tmp_path / "nowhere"))
    assert doctor.data(None) == {
        "folder": str(tmp_path / "nowhere"),
        "named_by": "DPMF_DATA",
        "found": None,
    }
    assert doctor.data(Path(tmp_path))["named_by"] == "--data-dir"
    assert doctor.installed("a-package-that-nobody-made") is None


def test_a_broken_layout_is_seen(monkeypatch):
    from dpmf_jax import layout

    whole = layout.sum_by_user
    monkeypatch.setattr(layout, "sum_by_user", lambda *arguments: 1.001 * whole(*arguments))
    check = selftest._answer("layouts", selftest.layouts)
    assert not check.passed
    assert check.detail.startswith("split: off by")


def test_a_wrong_price_is_seen(monkeypatch):
    from accounting import gaussian

    whole = gaussian.epsilon_exact
    monkeypatch.setattr(gaussian, "epsilon_exact", lambda rho, delta: 0.999 * whole(rho, delta))
    assert not selftest._answer("price", selftest.price).passed


def test_a_key_that_ignores_high_bits_is_seen(monkeypatch):
    from dpmf_jax.noise import keys

    whole = keys.from_seed
    monkeypatch.setattr(keys, "from_seed", lambda seed: whole(seed & 0xFFFFFFFF))
    check = selftest._answer("keys", selftest.randomness)
    assert check == ("keys", False, "two seeds that differ above bit 32 give one key")


def test_noise_of_another_scale_is_seen(monkeypatch):
    import jax

    whole = jax.random.normal
    monkeypatch.setattr(jax.random, "normal", lambda key, shape: 1.1 * whole(key, shape))
    assert not selftest._answer("keys", selftest.randomness).passed


def test_a_check_that_raises_has_failed():
    def raises() -> str:
        raise OSError("no space left")

    assert selftest._answer("files", raises) == ("files", False, "OSError: no space left")
    with pytest.raises(selftest.Failed, match="off by"):
        selftest._agree("x", np.array([1.0, np.nan]), np.array([1.0, 1.0]), 1.0)
