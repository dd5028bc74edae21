"""The audits on trial: how near the lower bound on ε comes to the exact one, false alarms, power.

- tightness: on pairs of data sets whose exact ε(δ) is known, the bound of
  `audits.mechanism.privacy_loss` over it, and seconds with compilation. Of a Gaussian pair the
  exact ε follows from its μ; of the L2-Laplace law from a quadrature over the radius and the angle
  of η; of a pure price the largest loss is held against ε, of one-bit reports by enumeration. Where
  samples are secret, the price of the steps stands in for the exact ε, which it is not below.
- guessing, attacks: see the modules of these names. calibration, power: see `bench.calibration`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import UsageError
from experiments.bench import attacks, calibration, generated, guessing, measure
from experiments.bench.audited import DELTAS, RANGE, joint, small

if TYPE_CHECKING:
    from dpmf_jax.layout import Layout

GOAL = {"joint noise": 0.98, "objective": 0.98, "subsampled": 0.95, "ml-100k": 0.93, "pure": 1.0}


class Case(NamedTuple):
    """A case of the tightness table.

    exact: (finding, mechanism, ratings, layout, δ) -> the exact ε of the audited pair.
    """

    name: str
    goal: float
    make: Callable[[], Any]
    num_steps: int
    ratings: Callable[[], Ratings]
    exact: Callable[..., float]
    num_runs: int | None = None


def run(trials: int = 2_000, *, big: bool = True) -> dict[str, Any]:
    """The tables of tightness, guessing, attacks, calibration and power.

    Args:
      trials: of each audit that costs little; a tenth of it of those that cost much, and of the
        power.
      big: also a data set of MovieLens-100K's size, and 300 steps.

    Returns: a JSON-able object; `rows` is a list of {case, delta, exact, bound, share, goal,
      seconds, runs, verdict}, `guessing` of {epsilon, canaries, method, share, bound, largest},
      `attacks` of {mechanism, unit, epsilon, audit, claimed, bound, verdict},
      `calibration` of {audit, trials, rejected_at_5%, allowed, violated}, `power` of {audit,
      trials, seen, ...}.

    Raises: UsageError for fewer than ten trials.
    """
    if trials < 10:
        raise UsageError(
            f"--trials must be at least 10; got {trials}", fix="dpmf bench audit --trials 2000"
        )
    others = measure.watch()
    rows = [row for case in cases(big=big) for row in tightness(case)]
    result = {
        "benchmark": "audit",
        "data": (
            "ratings of 30 users and 20 items" + (f", and {of_size_100k().name}" if big else "")
        ),
        "rows": [*rows, enumeration_row()],
        "guessing": [*guessing.rows()],
        "attacks": [*attacks.rows()],
        "calibration": [*calibration.calibration(trials)],
        "power": [*calibration.power(max(trials // 10, 10))],
    }
    return result | {"others": others()} | measure.machine(1)


# --- tightness


def of_size_100k() -> Ratings:
    """MovieLens-100K where it is at hand, else generated ratings of its size."""
    from dpmf_jax.data import datasets
    from dpmf_jax.errors import DpmfError

    try:
        return datasets.load("ml-100k")
    except DpmfError:
        return generated.ratings("ml-100k")


def objective_s1(**law: Any) -> Any:
    """S1 with public U, in closed form."""
    from dpmf_jax.mechanisms.objective import mechanisms as objective

    config = objective.Config(
        rating_range=RANGE, epsilon=2.0, rank=3, regularization=0.1, prior_count=20, **law
    )
    return objective.public_users(config)


def on_samples(unit: str) -> Any:
    from dpmf_jax.mechanisms.sampled import langevin

    config = langevin.Config(
        rating_range=RANGE,
        num_steps=20,
        sampling_rate=0.2,
        noise_multiplier=1.0,
        rank=3,
        clip_norm=0.2,
        unit=unit,  # ty: ignore[invalid-argument-type]
    )
    return langevin.dpsgd(config)


def cases(*, big: bool) -> list[Case]:
    joint_noise, s1, sampled = (GOAL[name] for name in ("joint noise", "objective", "subsampled"))
    found = [
        Case("joint noise, 20 steps", joint_noise, lambda: joint(20), 20, small, _of_mu),
        Case("objective S1, L2-Laplace", s1, objective_s1, 1, small, _of_l2_laplace),
        Case(
            "objective S1, Gaussian",
            s1,
            lambda: objective_s1(noise="gaussian", delta=1e-5),
            1,
            small,
            _of_shift,
        ),
        Case(
            "secret samples, presence",
            sampled,
            lambda: on_samples("rating presence"),
            20,
            small,
            _of_price,
        ),
    ]
    if big:
        found += [
            Case("joint noise, 300 steps", joint_noise, lambda: joint(300), 300, small, _of_mu),
            Case(
                "joint noise, ml-100k",
                GOAL["ml-100k"],
                lambda: joint(50, 20),
                50,
                of_size_100k,
                _of_mu,
            ),
        ]
    return found


def tightness(case: Case) -> Iterator[dict[str, Any]]:
    """A row for each δ; a pure price has one more, of the largest loss."""
    from audits.mechanism import privacy_loss
    from dpmf_jax import layout
    from dpmf_jax.noise import keys

    made, ratings = case.make(), case.ratings()
    data = layout.make(ratings, num_devices=1)
    for delta in DELTAS:
        start = time.perf_counter()
        findings = privacy_loss.audit(
            made,
            ratings,
            data,
            key=keys.from_seed(0),
            num_steps=case.num_steps,
            num_runs=case.num_runs,
            deltas=(delta,),
        )
        seconds = time.perf_counter() - start
        for finding in findings[: 1 if delta != DELTAS[-1] else None]:
            largest = finding.audit.endswith("largest")
            assert finding.lower is not None
            assert finding.claimed is not None
            exact = finding.claimed if largest else case.exact(finding, made, ratings, data, delta)
            yield {
                "case": f"{case.name}{', largest loss' if largest else ''}",
                "delta": 0.0 if largest else delta,
                "exact": exact,
                "bound": finding.lower,
                "share": finding.lower / exact if exact else math.nan,
                "goal": GOAL["pure"] if largest else case.goal,
                "seconds": seconds,
                "runs": finding.details.get("runs"),
                "verdict": finding.verdict,
            }


def _of_mu(finding: Any, made: Any, ratings: Any, data: Layout, delta: float) -> float:
    """ε from μ of the pair, which all runs share where each reaches Δ."""
    del made, ratings, data, delta
    return finding.details["epsilon_of_the_pair"]


def _of_price(finding: Any, made: Any, ratings: Any, data: Layout, delta: float) -> float:
    del made, ratings, data, delta
    return finding.claimed


def _of_l2_laplace(finding: Any, made: Any, ratings: Ratings, data: Layout, delta: float) -> float:
    distance, dimension = _shift(finding, made, ratings, data)
    return l2_laplace_epsilon(distance, dimension, delta)


def _of_shift(finding: Any, made: Any, ratings: Ratings, data: Layout, delta: float) -> float:
    from accounting import gaussian

    distance, _ = _shift(finding, made, ratings, data)
    return gaussian.epsilon_exact(distance**2 / 2, delta)


def _shift(finding: Any, made: Any, ratings: Ratings, data: Layout) -> tuple[float, int]:
    """(distance by which the pair's rating moves η, 2(r - r')u, over its scale; dimension of η)."""
    from dpmf_jax.kernels import whole_descent
    from dpmf_jax.noise import keys

    pair = finding.details["replay"]["pair"]
    state = made.init(keys.from_seed(0), data, None)
    moved = float(pair["change"].removeprefix("rating set to ")) - pair["value"]
    u = np.asarray(state.public.user_factors)[list(ratings.users).index(pair["user"])]
    scale, grid = float(made.noise.sample.args[0].scale), getattr(made.query.args[0], "grid", None)
    if grid is not None:  # σ is in units of Σru
        scale *= 2 * float(whole_descent.unit(grid))
    return float(np.linalg.norm(2 * moved * u)) / scale, len(u)


def l2_laplace_epsilon(distance: float, dimension: int, delta: float) -> float:
    """ε(δ) of η ∝ exp(-‖η‖) in `dimension` dimensions against itself `distance` away; 0 where δ(0)
    is below δ.

    Gauss-Legendre over the quantile of the radius, Gamma(d), and over the angle.
    """
    from scipy.optimize import brentq
    from scipy.stats import gamma

    nodes, weights = np.polynomial.legendre.leggauss(600)
    level, level_weights = (nodes + 1) / 2, weights / 2
    radius = gamma.ppf(level, dimension)[:, None]
    angle = np.pi * level
    density = np.sin(angle) ** (dimension - 2)
    mass = level_weights[:, None] * (level_weights * density / np.sum(level_weights * density))
    loss = np.sqrt(radius**2 + distance**2 + 2 * radius * distance * np.cos(angle)) - radius

    def excess(epsilon: float) -> float:
        return float(np.sum(mass * -np.expm1(np.minimum(epsilon - loss, 0.0)))) - delta

    return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0.0, distance, xtol=1e-9))


def enumeration_row() -> dict[str, Any]:
    """The one-bit report: its largest loss, exact by enumeration."""
    from audits.mechanism import enumeration
    from dpmf_jax import layout
    from dpmf_jax.mechanisms.local import gd as local
    from dpmf_jax.noise import keys

    ratings = small()
    made = local.gd(local.Config(epsilon=1.6, num_rounds=4, rank=3, center=3.0))
    start = time.perf_counter()
    findings = enumeration.audit(
        made, ratings, layout.make(ratings, num_devices=1), key=keys.from_seed(0), num_steps=4
    )
    [finding] = [f for f in findings if f.audit == enumeration.NAMES[0]]
    assert finding.measured is not None
    assert finding.claimed is not None
    return {
        "case": "one-bit report, by enumeration",
        "delta": 0.0,
        "exact": finding.claimed,
        "bound": finding.measured,
        "share": finding.measured / finding.claimed,
        "goal": GOAL["pure"],
        "seconds": time.perf_counter() - start,
        "runs": None,
        "verdict": finding.verdict,
    }
