"""What Gaussian steps on secret Poisson samples cost: DP-SGD on a count sketch, and Langevin
dynamics.

A phase is J steps that each draw a fresh sample, every record with probability q by itself, sum the
records' parts clipped to C and add N(0, z²C²) (`accounting.loss.SubsampledGaussian`). The unit
decides what the steps hide: for a rating's presence, or a user, a part that is there or not; for a
rating's value, a part that is anything against anything else, −C against +C at worst, which only
the privacy loss distribution prices (dp_accounting's Rényi accountant refuses it). All m ratings of
one user are a mixture of Gaussians, see `accounting.mixture`.

The sample has to stay secret and to be drawn so: batches of a fixed size, and batches cut from a
shuffled order, are other mechanisms with other prices (for shuffled ones usually higher), and
nothing here prices them.

`accounting.langevin` writes Langevin dynamics as phases, `accounting.calibration` inverts the
prices; their names are here as well.
"""

from collections.abc import Sequence

from accounting import composition, price
from accounting.calibration import solve_langevin_decay as solve_langevin_decay
from accounting.calibration import solve_langevin_rate as solve_langevin_rate
from accounting.calibration import solve_langevin_temperature as solve_langevin_temperature
from accounting.calibration import solve_noise_multiplier as solve_noise_multiplier
from accounting.calibration import solve_num_steps as solve_num_steps
from accounting.calibration import solve_sampling_rate as solve_sampling_rate
from accounting.langevin import decaying_rates as decaying_rates
from accounting.langevin import langevin_phases as langevin_phases
from accounting.loss import SubsampledGaussian, Unit

Phases = Sequence[SubsampledGaussian]


# --------------------------------------------------------------------------------------------------


def epsilon_rdp(phases: Phases, delta: float, *, unit: Unit) -> float:
    """ε by Rényi divergence (Mironov, Talwar & Zhang 2019), an upper bound; half a second.

    Raises:
      ValueError: unit "rating value", which dp_accounting's Rényi accountant does not price; δ is
        out of range.
    """
    return composition.rdp(check_phases(phases), unit=unit).epsilon(delta)


def epsilon_pld(phases: Phases, delta: float, *, unit: Unit) -> float:
    """ε by the privacy loss distribution, an upper bound within 1e-4 relative; see
    `composition.pld`.

    Raises:
      ValueError: δ is not in (0, 1), or the unit is unknown.
    """
    return composition.pld(check_phases(phases), unit=unit).epsilon(delta)


def delta_pld(phases: Phases, epsilon: float, *, unit: Unit) -> float:
    """δ(ε) by the privacy loss distribution, an upper bound, 0 only without a step."""
    return composition.pld(check_phases(phases), unit=unit).delta(epsilon)


def accountants(phases: Phases, delta: float, *, unit: Unit) -> dict[str, float]:
    """ε by name, rdp before pld; pld alone for the unit "rating value"."""
    prices = {} if unit == "rating value" else {"rdp": epsilon_rdp(phases, delta, unit=unit)}
    return {**prices, "pld": epsilon_pld(phases, delta, unit=unit)}


def epsilon_user(phases: Phases, delta: float, *, num_ratings: int) -> float:
    """ε for all m ratings of one user, there or not, each sampled by itself; an upper bound like
    `epsilon_pld`.

    Not m² in ρ: at m = 20, q = 0.01, z = 1, 100 steps and δ = 1e-6 that would say 15.3 where 21.7
    is true. Ratings that change value are not priced: they are a pair of mixtures.

    Raises:
      ValueError: m is not an integer of at least 1, or δ is out of range.
    """
    return composition.pld(
        check_phases(phases), unit="rating presence", num_ratings=num_ratings
    ).epsilon(delta)


def event(phases: Phases, *, unit: Unit):
    """The phases as a dp_accounting event of Poisson-sampled Gaussians.

    To be priced under REPLACE_ONE for the unit "rating value" (its PLDAccountant knows that σ/C
    then stands for −C against +C) and under ADD_OR_REMOVE_ONE otherwise.
    """
    return price.event(check_phases(phases), unit=unit)


def check_phases(phases: Phases) -> tuple[SubsampledGaussian, ...]:
    """The phases as a tuple. Raises: ValueError for a loss of another kind."""
    for phase in phases:
        if not isinstance(phase, SubsampledGaussian):
            raise ValueError(f"phases must be of SubsampledGaussian, got {type(phase).__name__}")
    return tuple(phases)
