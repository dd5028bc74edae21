"""How far each guarantee is proved, and that it says what float32 noise leaves open."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from accounting import Guarantee, compose, gaussian, no_guarantee
from accounting.ledger import Entry, budgets
from accounting.loss import Gaussian, SubsampledGaussian
from accounting.relation import PRESENCE
from accounting.status import LEAVES_OPEN, REAL_NUMBERS
from dpmf_jax import mechanisms
from dpmf_jax.mechanisms.federated.guarantee import (
    iterations_guarantee,
    published_iterations_guarantee,
)
from dpmf_jax.mechanisms.local import laplace as local_laplace
from dpmf_jax.mechanisms.local.guarantee import local_guarantee, shuffled_guarantee
from dpmf_jax.mechanisms.objective.guarantee import (
    published_guarantee,
    real_closed_form_guarantee,
    real_statistics_guarantee,
)
from dpmf_jax.mechanisms.sampled.guarantee import langevin_guarantee, sampled_guarantee
from dpmf_jax.models import files as model_file
from dpmf_jax.models.model import Model
from dpmf_jax.protocol import Release
from experiments.audit import suite as audit_suite
from experiments.audit import view as audit_view
from experiments.cli import budget_report
from experiments.epsilon import phases as epsilon_phases
from experiments.fit import report as fit_report
from tests.cases import CHECKOUT
from tests.cases.audit_report import trial
from tests.cases.guarantee import claimed, plain, proved

REAL: Any = {"status": REAL_NUMBERS}
# By label of what `dpmf audit --all` puts on trial: the status, and whether the noise is a float32
# Gaussian or Laplace.
EXPECTED = {
    "001 as published, τ the range's width": ("claimed", True),
    "001 as published, τ of the plots": ("claimed", True),
    "001 as published, C = 0.25": ("claimed", True),
    "001 sound: joint noise": ("proved", False),
    "001 sound: public items": ("proved", False),
    "001 sound: user means": ("proved", False),
    "002 as published: sketch": ("none", False),
    "002 sound: sketch, DP-SGD": ("proved", False),
    "002 sound: DP-SGD": ("proved", False),
    "002 sound: Langevin": ("proved", False),
    "003 as published: S1, objective": ("claimed", True),
    "003 as published: S2, federated": ("claimed", True),
    "003 as published: S3, federated, users come and go": ("claimed", True),
    "003 sound: objective, public users": ("proved", False),
    "003 sound: objective, statistics": ("proved", False),
    "003 sound: federated, per user": ("proved", False),
    "003 sound: federated, statistics": ("proved", False),
    "004 Private GD": ("proved", False),
    "004 Private GD-DR": ("proved", False),
    "ours: als": ("proved", False),
    "ours: als-federated": ("proved", False),
    "ours: als-implicit": ("proved", False),
    "ours: means": ("proved", False),
    "ours: ridge": ("proved", False),
}


def held(guarantee: Guarantee, status: str, real: bool) -> None:
    """The status, and the one sentence in the statement and in JSON, exactly where it belongs."""
    assert (guarantee.status, guarantee.real_number_noise) == (status, real)
    assert (LEAVES_OPEN in plain(str(guarantee))) == real
    told = json.loads(json.dumps(guarantee.to_dict(), allow_nan=False))
    assert told["leaves_open"] == (LEAVES_OPEN if real else None)
    assert Guarantee.from_dict(told) == guarantee


def guarantees(label: str) -> list[Guarantee]:
    (entry,) = [entry for entry in audit_suite.ENTRIES if entry.label == label]
    ratings = audit_suite.generated()
    phases, _ = audit_suite.phases_of(entry, ratings, small=True)
    return [mechanism.guarantee(steps) for mechanism, steps in phases]


def test_no_mechanism_on_trial_is_left_out():
    assert set(EXPECTED) == {entry.label for entry in audit_suite.ENTRIES}


@pytest.mark.one_case
@pytest.mark.parametrize("label", EXPECTED)
def test_every_mechanism_says_how_far_it_is_proved_and_what_float32_leaves_open(label):
    phases = guarantees(label)
    status, real = EXPECTED[label]
    held(phases[-1], status, real)
    for means in phases[:-1]:  # noisy item means
        held(means, "proved", False)
    held(compose(*phases), status, real)


def test_laplace_rows_are_proved_for_real_numbers():
    made = local_laplace.mechanism(
        local_laplace.Config(epsilon=1.0, num_rounds=2, num_items=3, rank=2, center=0.0, clip=1.0)
    )
    held(made.guarantee(2), REAL_NUMBERS, True)


SAMPLED = (SubsampledGaussian(noise_multiplier=2.0, sampling_rate=0.1, num_steps=3),)
SHAPE: dict[str, Any] = {"range_width": 4.0, "rank": 3}
SENT: dict[str, Any] = {"clip_norm": 1.0, "scale": 20.0, "num_iterations": 2, "honest_shares": 5}
STEPS = (Gaussian(noise_multiplier=9.0, num_steps=3),)
# What `dpmf epsilon` prices without a mechanism: of the same noise the same status.
PRICES = {
    "sampled": lambda: sampled_guarantee(SAMPLED, delta=1e-5, clip_norm=1.0),
    "langevin": lambda: langevin_guarantee(SAMPLED, delta=1e-5, clip_norm=1.0),
    "closed form, laplace": lambda: real_closed_form_guarantee(
        noise="laplace", scale=80.0, **SHAPE
    ),
    "closed form, l2": lambda: real_closed_form_guarantee(noise="l2_laplace", scale=80.0, **SHAPE),
    "closed form, gaussian": lambda: real_closed_form_guarantee(
        noise="gaussian", scale=80.0, delta=1e-5, **SHAPE
    ),
    "statistics": lambda: real_statistics_guarantee(
        matrix_scale=9.0, vector_scale=9.0, rating_bound=2.0, delta=1e-5
    ),
    "iterations, gaussian": lambda: iterations_guarantee(noise="gaussian", delta=1e-5, **SENT),
    "iterations, l2": lambda: iterations_guarantee(noise="l2_laplace", **SENT),
}
EXACT = {
    "joint noise": lambda: epsilon_phases.guarantee_of(
        "gaussian-joint-noise", STEPS, relation="rating-value", sensitivity=None, delta=1e-5
    ),
    "public items": lambda: epsilon_phases.guarantee_of(
        "gaussian-public-items", STEPS, relation="rating-presence", sensitivity=None, delta=1e-5
    ),
    "iterations, laplace": lambda: iterations_guarantee(noise="laplace", **SENT),
    "one bit": lambda: local_guarantee(1.0, 3),
    "shuffled": lambda: shuffled_guarantee(1.0, 1, num_reports=1000, delta=1e-5),
}


@pytest.mark.parametrize("name", PRICES)
def test_prices_of_real_noise_say_so(name):
    held(PRICES[name](), REAL_NUMBERS, True)


@pytest.mark.parametrize("name", EXACT)
def test_prices_of_exact_noise_are_proved(name):
    held(EXACT[name](), "proved", False)


def test_published_prices_are_claimed_by_their_paper_and_for_real_numbers():
    published: Any = epsilon_phases.guarantee_of(
        "gaussian", STEPS, relation="rating-value", sensitivity=None, delta=1e-5
    )
    others = (
        (published_guarantee(noise="laplace", scale=80.0, **SHAPE), "paper 003"),
        (
            published_iterations_guarantee(epsilon=0.1, num_iterations=3, range_width=4.0),
            "paper 003",
        ),
    )
    for guarantee, paper in ((published, "paper 001"), *others):
        held(guarantee, "claimed", True)
        assert f"claimed by {paper}, and NOT proved: it does not hold in general" in plain(
            str(guarantee)
        )


# -------------------------------------------------------------------------------------------------


def test_epsilon_is_stated_as_for_a_proof_and_the_words_are_not():
    real = proved(**REAL)
    assert (real.epsilon, real.accountants) == (proved().epsilon, proved().accountants)
    assert real.for_user(7)[:3] == proved().for_user(7)[:3]
    assert real.at_delta(1e-7).epsilon == proved().at_delta(1e-7).epsilon
    assert real.user_price == proved().user_price
    text = plain(str(real))
    assert (
        f"Differential privacy for real-number noise: ε = {real.epsilon:.4f} (rounded up)" in text
    )
    assert "status proved for real-number noise, under the assumptions below" in text
    assert LEAVES_OPEN in text
    assert "proved for real-number noise, ε = " in real.headline
    assert f"proved ε = {real.epsilon:.4f}" in proved().headline
    assert max(map(len, str(real).splitlines())) <= 110


def test_the_weakest_status_of_all_phases_is_that_of_the_whole():
    for parts, status, real in (
        ((proved(), proved()), "proved", False),
        ((proved(), proved(**REAL)), REAL_NUMBERS, True),
        ((proved(**REAL), claimed()), "claimed", True),
        ((claimed(real_number_noise=True), proved()), "claimed", True),
        ((claimed(), proved()), "claimed", False),
    ):
        held(compose(*parts), status, real)
        held(compose(*reversed(parts)), status, real)
    nothing = no_guarantee(mechanism="x", num_steps=1, released=())
    held(compose(proved(**REAL), nothing), "none", False)


def test_a_status_and_its_noise_cannot_contradict_each_other():
    with pytest.raises(ValueError, match="real"):
        proved(real_number_noise=True)
    with pytest.raises(ValueError, match="real"):
        dataclasses.replace(proved(**REAL), status="proved")
    assert proved(**REAL, real_number_noise=True).real_number_noise


NEW = (
    "real_number_noise",
    "claimed_by",
    "leaves_open",
    "relation_kind",
)  # what an older file does not have


def old(guarantee: Guarantee, **change: Any) -> Guarantee:
    told = json.loads(json.dumps(guarantee.to_dict()))
    return Guarantee.from_dict(
        {**{name: value for name, value in told.items() if name not in NEW}, **change}
    )


def test_an_older_file_that_says_proved_is_read_as_proved_for_real_numbers():
    held(old(proved()), REAL_NUMBERS, True)
    held(old(claimed()), "claimed", True)
    for name in set(PRICES) - {"iterations, l2"}:  # of which no mechanism was ever saved
        held(old(PRICES[name](), status="proved"), REAL_NUMBERS, True)
    laplace = local_laplace.mechanism(
        local_laplace.Config(epsilon=1.0, num_rounds=2, num_items=3, rank=2, center=0.0, clip=1.0)
    )
    held(old(laplace.guarantee(2), status="proved"), REAL_NUMBERS, True)
    for name in set(EXACT) - {"joint noise", "public items"}:  # whose noise was float32 then
        held(old(EXACT[name]()), "proved", False)
    for name in ("joint noise", "public items"):
        held(old(EXACT[name]()), REAL_NUMBERS, True)
    held(old(no_guarantee(mechanism="x", num_steps=1, released=())), "none", False)


# --------------------------------------------------------------------------------------------------


def test_a_claim_of_ones_own_is_not_the_papers():
    own = plain(str(claimed()))
    assert "claimed, and NOT proved" in own
    assert "paper" not in re.sub(r"equation \(9\) of paper 001", "", own)
    theirs = claimed(claimed_by="paper 001")
    assert "claimed by paper 001, and NOT proved: it does not hold in general" in plain(str(theirs))
    assert Guarantee.from_dict(json.loads(json.dumps(theirs.to_dict()))) == theirs
    with pytest.raises(ValueError, match="claimed_by"):
        proved(claimed_by="paper 001")
    with pytest.raises(ValueError, match="claimed_by"):
        claimed(claimed_by="")


def test_a_sum_is_the_papers_only_where_every_claim_in_it_is():
    theirs = claimed(claimed_by="paper 001")
    assert compose(theirs, proved()).claimed_by == "paper 001"
    assert compose(theirs, claimed(claimed_by="paper 003")).claimed_by == "paper 001 and paper 003"
    assert compose(theirs, claimed()).claimed_by is None
    assert compose(proved(), proved()).claimed_by is None


def test_a_report_says_whose_claim_it_is_and_what_it_leaves_open():
    def facts(status: Any, **change: Any) -> str:
        told, _ = trial([], status=status)
        told["guarantee"] |= change
        return json.dumps(
            audit_view._claim({**told, "verdict": "consistent", "evidence": ""}),
            default=str,
            ensure_ascii=False,
        )

    assert "claimed, and NOT proved" in facts("claimed")
    assert "paper" not in facts("claimed").replace("equation (9) of paper 001", "").replace(
        "of paper 001, from", ""
    )
    assert "claimed by paper 003, and NOT proved" in facts("claimed", claimed_by="paper 003")
    assert LEAVES_OPEN in facts(REAL_NUMBERS)
    assert LEAVES_OPEN not in facts("proved")


# --------------------------------------------------------------------------------------------------


def test_the_sentence_stands_where_people_read():
    for page in ("README.md", "docs/mechanisms.md", "docs/audits.md"):
        assert LEAVES_OPEN in plain((CHECKOUT / page).read_text(encoding="utf-8")), page
    written = [
        path
        for folder in ("accounting", "audits", "dpmf_jax", "experiments")
        for path in (CHECKOUT / folder).rglob("*.py")
        if "82%" in path.read_text(encoding="utf-8")
    ]
    assert written == [CHECKOUT / "accounting" / "status.py"]


def saved(folder: Path, guarantee: Guarantee) -> Path:
    Model(
        release=Release(user_factors=np.ones((2, 1), np.float32)),
        guarantee=guarantee,
        users=np.array(["a", "b"]),
        items=np.array([1, 2]),
        rating_range=(1.0, 5.0),
        settings={},
    ).save(folder)
    return folder


def test_a_saved_model_says_it_in_both_public_files(tmp_path):
    for name, status in (("real", REAL_NUMBERS), ("exact", "proved")):
        folder = saved(tmp_path / name, proved(status=status))
        assert (LEAVES_OPEN in plain((folder / "PRIVACY.md").read_text(encoding="utf-8"))) == (
            name == "real"
        )
        told = json.loads((folder / "model.json").read_text(encoding="utf-8"))["guarantee"]
        assert (told["status"], told["leaves_open"]) == (
            status,
            LEAVES_OPEN if name == "real" else None,
        )


def test_a_model_of_an_older_version_is_read_and_no_longer_called_proved(tmp_path):
    folder = saved(tmp_path / "old", proved(relation=PRESENCE, unit="rating presence"))
    content = model_file.read_signed(folder / "model.json")
    for name in NEW:
        del content["guarantee"][name]
    content["guarantee"]["relation"] = (
        "one rating is added or removed, by any user, of any item, with any value"
    )
    model_file.write_signed(folder / "model.json", content)
    guarantee = model_file.read(folder).guarantee
    assert (guarantee.status, guarantee.relation) == (REAL_NUMBERS, PRESENCE)
    assert LEAVES_OPEN in plain(str(guarantee))


def test_a_ledger_says_how_far_its_total_is_proved():
    def total(*guarantees: Guarantee) -> str:
        entries = [
            Entry(
                id=f"{number:064x}",
                time="2025-01-01T00:00:00+00:00",
                data_set="mine",
                data_hash=None,
                guarantee=guarantee,
                model="runs/1",
            )
            for number, guarantee in enumerate(guarantees)
        ]
        told = [budget_report.budget_values(budget) for budget in budgets(entries)]
        assert [one["leaves_open"] for one in told[0]["totals"]] == [
            LEAVES_OPEN if any(guarantee.real_number_noise for guarantee in guarantees) else None
        ]
        shown = budget_report.render_show(
            {"data_sets": told, "overlaps": [], "covers": [], "ledger": "ledger"}
        )
        return next(line for line in shown.splitlines() if "total:" in line)

    assert total(proved(), proved(**REAL)).endswith("2 releases, proved for real-number noise")
    assert total(proved(), claimed()).endswith("2 releases, claimed and NOT proved")
    assert total(proved(), proved()).endswith("2 releases")


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ("proved", "yes, proved"),
        (REAL_NUMBERS, "yes, proved for real-number noise"),
        ("claimed", "claimed only"),
        ("none", "no"),
    ],
)
def test_the_table_of_a_fit_says_whether_it_is_private(status, told, capsys):
    nothing = dict.fromkeys(
        ("rmse_train", "rmse_test", "ndcg_at_10", "seconds_per_step", "shuffled", "bytes", "ledger")
    )
    words = dict.fromkeys(("mechanism", "data", "utility", "device", "layout", "out"), "x")
    result = {
        **nothing,
        **words,
        "guarantee": {"status": status, "statement": "s"},
        "controls": {},
        "notes": [],
    }
    Console(width=200).print(fit_report.render({**result, "steps": 1}))
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "│ this model" in line]
    assert [cell.strip() for cell in row.strip("│").split("│")][1] == told


def test_the_table_of_mechanisms_has_the_status_of_each():
    table = {}
    page = CHECKOUT / "docs" / "mechanisms.md"
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 6 and (name := re.match(r"`([a-z-]+)`", cells[1])):
            found = re.match(r"\*\*([^*]+)\*\*", cells[3])
            table[name[1]] = found[1] if found else None
    assert set(table) - {"--mechanism"} == set(mechanisms.table())
    for entry in audit_suite.ENTRIES:
        status = EXPECTED[entry.label][0]
        assert table[entry.mechanism] == status, entry.label


def test_stopping_early_takes_the_proof_away_and_is_no_papers_claim(tmp_path):
    from dpmf_jax.training import price

    ratings = audit_suite.generated()
    (entry,) = [entry for entry in audit_suite.ENTRIES if entry.label == "001 sound: joint noise"]
    phases, _ = audit_suite.phases_of(entry, ratings, small=True)
    guarantee = price.guarantee(phases, seeded=True, patience=3)
    held(guarantee, "claimed", False)
    assert guarantee.claimed_by is None
    assert guarantee.epsilon >= gaussian.epsilon_closed_form(guarantee.rho or 0.0, guarantee.delta)
