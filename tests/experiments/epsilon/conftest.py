"""Fixtures of the tests of `dpmf epsilon`, a plugin of theirs: commands run in this process, models
to price.
"""

import json
from pathlib import Path

import pytest

from experiments.cli import main as cli
from tests.cases.epsilon import ODD


@pytest.fixture
def dpmf(capsys):
    """Runs `dpmf epsilon ...`: (exit code, stdout, stderr)."""

    def run(*words) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = cli.main(["epsilon", *map(str, words)])
        except SystemExit as ended:
            code = ended.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def priced(dpmf):
    """The JSON of a command line that must succeed."""

    def run(*words) -> dict:
        code, out, err = dpmf(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    return run


@pytest.fixture
def refused(dpmf):
    """What is said of a command line that must be refused: three lines at most, nothing on stdout,
    no traceback.
    """

    def run(*words, code: int = 2) -> str:
        found, out, err = dpmf(*words)
        assert (found, out) == (code, ""), (out, err)
        assert "Traceback" not in err
        assert {line.partition(":")[0] for line in err.splitlines()} <= {"error", "where", "fix"}
        assert err.startswith("error: ")
        assert "\nfix: " in err
        return err

    return run


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, Path]:
    """Folders as `Model.save` writes them: one with a proved guarantee, one without any."""
    import numpy as np

    from accounting import loss, no_guarantee, priced
    from dpmf_jax.models.model import Model
    from dpmf_jax.protocol import Release

    proved = priced(
        mechanism="gaussian-public-items",
        losses=(loss.Gaussian(noise_multiplier=10.0, num_steps=20, user_rho=(1.0, 0.0)),),
        delta=1e-5,
        unit="rating value",
        relation="one rating's value differs",
        released=("user factors",),
        trust_model="a curator",
        status="proved",
    )
    pure = priced(
        mechanism="federated-ldp",
        losses=(loss.Pure(epsilon=0.5, num_rounds=5),),
        delta=float(ODD),
        unit="user",
        relation="any change to one user's ratings",
        released=("item factors",),
        trust_model="local",
        status="proved",
    )
    folder = tmp_path_factory.mktemp("models")
    for name, guarantee in (
        ("proved", proved),
        ("pure", pure),
        ("none", no_guarantee(mechanism="non-private", num_steps=3, released=())),
    ):
        factors = np.ones((2, 1), np.float32)
        Model(
            release=Release(user_factors=factors) if name != "none" else Release(),
            guarantee=guarantee,
            users=np.array(["a", "b"]),
            items=np.array([1, 2]),
            rating_range=(1.0, 5.0),
            settings={},
        ).save(folder / name)
    return {name: folder / name for name in ("proved", "pure", "none")}
