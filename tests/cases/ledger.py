"""Releases to enter in a ledger, and `dpmf budget` on it."""

import hashlib
import json
from pathlib import Path

import numpy as np

from accounting import priced
from accounting.ledger import Entry
from accounting.loss import Gaussian
from dpmf_jax.models.model import Model
from dpmf_jax.protocol import Release
from experiments.cli import main as cli

LEDGER = Path("books/ledger.jsonl")
VALUE = "two data sets with the same rated pairs, one rating's value differs, by at most 4"


def guarantee(*losses, delta=1e-5, unit="rating value", relation=VALUE, status="proved", **fields):
    return priced(
        mechanism=fields.pop("mechanism", "gaussian-joint-noise"),
        losses=losses or (Gaussian(noise_multiplier=50.0, num_steps=100),),
        delta=delta,
        unit=unit,
        relation=relation,
        released=("item factors",),
        trust_model="trusted curator",
        status=status,
        **fields,
    )


def entry(number, promise=None, *, data_set="mine", data_hash=None, day=1):
    return Entry(
        id=hashlib.sha256(f"release {number}".encode()).hexdigest(),
        time=f"2025-01-{day:02}T00:00:00+00:00",
        data_set=data_set,
        data_hash=data_hash,
        guarantee=promise or guarantee(),
        model=f"runs/{number}",
    )


def saved(name, promise=None, *, data="mine", data_hash="c0ffee", released=True, number=0):
    """A model's folder as `dpmf fit` leaves it."""
    factors = np.full((2, 1), 1.0 + number, np.float32) if released else None
    Model(
        release=Release(user_factors=None, item_factors=factors, center=None),
        guarantee=promise or guarantee(),
        users=np.array(["a", "b"]),
        items=np.array(["x", "y"]),
        rating_range=(1.0, 5.0),
        settings={} if data is None else {"data": data},
    ).save(name)
    if data_hash is not None:
        (Path(name) / "private").mkdir()
        (Path(name) / "private" / "run.json").write_text(json.dumps({"ratings": data_hash}))
    return Path(name)


def run(capsys, *words):
    code = cli.main(["budget", *(str(word) for word in words)])
    told = capsys.readouterr()
    return code, told.out, told.err


def shown(capsys, *words):
    code, out, err = run(capsys, "show", "--json", *words)
    assert code == 0, err
    return json.loads(out)
