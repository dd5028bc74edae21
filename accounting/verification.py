"""The closed form of paper 001, and the exact ε, against every other way to compute them.

Settings are the forty of `accounting.epsilon_table`, and a seeded grid over what paper 001 writes a
run with, drawn log-uniformly: ε_i in [1e-3, 10], δ in [1e-8, 0.1], J in [1, 1e5], δ_r in
[1e-12, 1e-2]. A setting is drawn again where ρ falls outside [1e-6, 1e3], or above 10 where the
privacy loss distribution is asked. Theorem 1 of the paper says nothing from ε_i = 1 on. The formula
is checked there all the same, and those settings are marked.
"""

import math
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from accounting import epsilon_table, gaussian

DIGITS = 40  # of the oracle
DELTAS_PER_PLD = 4


class Setting(NamedTuple):
    """J steps written as (ε_i, δ), priced at δ_r."""

    epsilon_step: float
    delta_step: float
    num_steps: int
    delta: float


class Row(NamedTuple):
    """One setting and its ε by every way; None where a way was not asked."""

    setting: Setting
    rho: float
    theorem_1_applies: bool
    closed_form: float
    minimum: float
    mironov: float
    rdp: float
    pld: float | None
    exact: float
    oracle: float
    failed: tuple[str, ...]


class Violation(NamedTuple):
    """A check that does not hold.

    left, right: what was compared.
    found: what had to be at most `allowed`.
    """

    check: str
    setting: Setting
    left: float
    right: float
    found: float
    allowed: float


class Check(NamedTuple):
    """What one check found, and on how many settings.

    worst: the largest number that was found, which is to be at most `allowed`.
    """

    name: str
    statement: str
    allowed: float
    count: int
    worst: float
    violations: int


class Verification(NamedTuple):
    """All rows, all checks and every violation; the claim is verified where there is none."""

    seed: int
    rows: tuple[Row, ...]
    checks: tuple[Check, ...]
    violations: tuple[Violation, ...]

    @property
    def num_outside_theorem(self) -> int:
        """Settings with ε_i >= 1, of which Theorem 1 of paper 001 says nothing."""
        return sum(not row.theorem_1_applies for row in self.rows)

    @property
    def num_at_floor(self) -> int:
        """Settings whose ε is below 0.1·√ρ, where the oracle's tolerance is absolute, 1e-11·√ρ."""
        return sum(row.oracle < 0.1 * math.sqrt(row.rho) for row in self.rows)

    @property
    def num_pld(self) -> int:
        return sum(row.pld is not None for row in self.rows)


# Half of the table's last digit, and what reading a decimal as a float may add.
HALF_DIGIT = 5.0001e-6

# Name: (what holds, the largest that the measured number may be).
CHECKS = {
    "minimum": (
        "closed form = minimum over real α of αρ + ln(1/δ)/(α − 1), relative difference",
        1e-12,
    ),
    "mironov": (
        (
            "closed form = minimum over orders, α* among them, of dp_accounting's rdp + ln(1/δ)/(α"
            " − 1)"
        ),
        1e-9,
    ),
    "oracle": (f"exact = root in {DIGITS} digits, difference relative to max(ε, 0.1·√ρ)", 1e-10),
    "upper": (f"exact >= root in {DIGITS} digits, shortfall relative to max(ε, 0.1·√ρ)", 0.0),
    "exact <= pld": ("exact <= PLD + 1e-9", 1e-9),
    "pld <= rdp": ("PLD <= RDP + 1e-9, RDP at its best order", 1e-9),
    "exact <= rdp": ("exact <= RDP, RDP at its best order", 0.0),
    "rdp <= closed": ("RDP, as dp_accounting computes it, <= closed form", 0.0),
    "rdp": ("RDP as printed = dp_accounting's at its best order, relative difference", 1e-9),
    "exact <= basic": ("exact <= basic composition", 0.0),
    "table closed_form": ("closed form = the table's", HALF_DIGIT),
    "table rdp": ("RDP at dp_accounting's default orders = the table's", HALF_DIGIT),
    "table pld": ("PLD = the table's", HALF_DIGIT),
    "table exact": ("exact = the table's", HALF_DIGIT),
}


def verify(
    *,
    num_settings: int = 10_000,
    seed: int = 1,
    num_pld: int = 400,
    progress: Callable[[int], None] | None = None,
) -> Verification:
    """Every check of `CHECKS` on every setting that it is for.

    It takes a minute on one core by default, and needs mpmath.

    Args:
      num_settings: all of them, the forty of the table included.
      seed: of the grid; the same seed, the same settings.
      num_pld: settings of the grid on which the privacy loss distribution is asked as well, one
        distribution for every `DELTAS_PER_PLD`; it is asked on the table in any case.
      progress: called with the number of settings done.

    Raises:
      ValueError: there are fewer settings than the table and `num_pld` need.
      ModuleNotFoundError: mpmath is not installed.
    """
    import mpmath  # noqa: F401  the oracle's, refused before a minute is spent

    runs = list(settings(num_settings, seed=seed, num_pld=num_pld))
    minima = _minima(
        [(gaussian.rho_from_step(*run[0][:3]), s.delta) for run, _ in runs for s in run]
    )
    rows: list[Row] = []
    found: list[tuple[Setting, str, float, float, float]] = []
    for run, with_pld in runs:
        accountant = (
            gaussian.loss_distribution(_noise_multiplier(run[0]), run[0].num_steps)
            if with_pld
            else None
        )
        for setting in run:
            pld = None if accountant is None else float(accountant.get_epsilon(setting.delta))
            row, compared = _row_and_compared(setting, minima[len(rows)], pld)
            if len(rows) < len(epsilon_table.TABLE):
                compared += _compared_with_table(setting, epsilon_table.TABLE[len(rows)], row)
            failed = tuple(name for name, _, _, value in compared if not value <= CHECKS[name][1])
            rows.append(row._replace(failed=failed))
            found += [(setting, *one) for one in compared]
            if progress is not None:
                progress(len(rows))
    violations = tuple(
        Violation(name, setting, left, right, value, CHECKS[name][1])
        for setting, name, left, right, value in found
        if not value <= CHECKS[name][1]
    )
    return Verification(seed, tuple(rows), tuple(_checks(found)), violations)


def settings(num_settings: int, *, seed: int, num_pld: int) -> Iterator[tuple[list[Setting], bool]]:
    """Runs of settings that differ in δ_r alone, and whether PLD prices them; the table's first.

    Raises:
      ValueError: there are fewer settings than the table and `num_pld` need.
    """
    table = [
        Setting(entry.epsilon_step, epsilon_table.DELTA_STEP, entry.num_steps, epsilon_table.DELTA)
        for entry in epsilon_table.TABLE
    ]
    if not (num_pld >= 0 and num_settings >= len(table) + num_pld):
        raise ValueError(
            f"num_settings must be at least {len(table)} and num_pld, which must be at least 0, "
            f"got {num_settings!r} and {num_pld!r}"
        )
    yield from (([setting], True) for setting in table)
    draw = random.Random(seed)
    left = num_settings - len(table)
    while left > 0:
        asked = num_pld - (num_settings - len(table) - left)
        size = min(DELTAS_PER_PLD, asked) if asked > 0 else 1
        first = _random_setting(draw, largest_rho=10.0 if asked > 0 else 1e3)
        yield (
            [first, *(first._replace(delta=_log_uniform(draw, -12, -2)) for _ in range(size - 1))],
            asked > 0,
        )
        left -= size


def _random_setting(draw: random.Random, *, largest_rho: float) -> Setting:
    while True:
        setting = Setting(
            epsilon_step=_log_uniform(draw, -3, 1),
            delta_step=_log_uniform(draw, -8, -1),
            num_steps=round(_log_uniform(draw, 0, 5)),
            delta=_log_uniform(draw, -12, -2),
        )
        if 1e-6 <= gaussian.rho_from_step(*setting[:3]) <= largest_rho:
            return setting


def _log_uniform(draw: random.Random, low: float, high: float) -> float:
    return 10.0 ** draw.uniform(low, high)


def _noise_multiplier(setting: Setting) -> float:
    return gaussian.noise_multiplier_from_step(setting.epsilon_step, setting.delta_step)


# --------------------------------------------------------------------------------------------------


def _row_and_compared(
    setting: Setting, minima: tuple[float, float], pld: float | None
) -> tuple[Row, list[tuple[str, float, float, float]]]:
    """The row, and what was compared: check, left, right, the number that is to be small."""
    import dp_accounting
    from dp_accounting.rdp import rdp_privacy_accountant

    minimum, best_order = minima
    z, num_steps, delta = _noise_multiplier(setting), setting.num_steps, setting.delta
    rho = gaussian.rho(z, num_steps)
    closed, exact = gaussian.epsilon_closed_form(rho, delta), gaussian.epsilon_exact(rho, delta)
    basic, printed = (
        gaussian.epsilon_basic(rho, num_steps, delta),
        gaussian.epsilon_rdp(z, num_steps, delta),
    )
    orders = sorted(
        {*rdp_privacy_accountant.DEFAULT_RDP_ORDERS, gaussian.optimal_order(rho, delta), best_order}
    )
    accountant = dp_accounting.rdp.RdpAccountant(orders).compose(
        dp_accounting.GaussianDpEvent(z), num_steps
    )
    # `rdp` and `orders` are public properties: Rényi divergences as dp_accounting has them, before
    # any conversion
    mironov = float(min(accountant.rdp - math.log(delta) / (accountant.orders - 1)))
    rdp = float(
        accountant.get_epsilon(delta)
    )  # its own conversion and minimum, not cut off at the closed form
    root, shortfall = _oracle(setting, exact)
    scale = max(root, 0.1 * math.sqrt(rho))
    compared = [
        ("minimum", closed, minimum, abs(closed / minimum - 1)),
        ("mironov", closed, mironov, abs(closed / mironov - 1)),
        ("oracle", exact, root, abs(shortfall) / scale),
        ("upper", exact, root, shortfall / scale),
        ("exact <= rdp", exact, rdp, exact - rdp),
        ("rdp <= closed", rdp, closed, rdp - closed),
        ("rdp", printed, rdp, abs(printed - rdp) / max(rdp, 1e-300)),
        ("exact <= basic", exact, basic, exact - basic),
    ]
    if pld is not None:
        compared += [("exact <= pld", exact, pld, exact - pld), ("pld <= rdp", pld, rdp, pld - rdp)]
    applies = setting.epsilon_step < 1
    return Row(setting, rho, applies, closed, minimum, mironov, rdp, pld, exact, root, ()), compared


def _compared_with_table(
    setting: Setting, entry: epsilon_table.Entry, row: Row
) -> list[tuple[str, float, float, float]]:
    import dp_accounting

    event, steps = dp_accounting.GaussianDpEvent(_noise_multiplier(setting)), setting.num_steps
    default = dp_accounting.rdp.RdpAccountant().compose(event, steps).get_epsilon(setting.delta)
    # a quarter of the usual grid, whose answer is up to 8e-6 too high where ε is 67
    grid = 0.25e-3 * math.sqrt(2 * row.rho)
    fine = dp_accounting.pld.PLDAccountant(value_discretization_interval=grid).compose(event, steps)
    pairs = [
        ("table closed_form", row.closed_form, entry.closed_form),
        ("table rdp", float(default), entry.rdp_default),
        ("table pld", float(fine.get_epsilon(setting.delta)), entry.pld),
        ("table exact", row.exact, entry.exact),
    ]
    return [(name, ours, theirs, abs(ours - theirs)) for name, ours, theirs in pairs]


def _oracle(setting: Setting, exact: float) -> tuple[float, float]:
    """The root of δ(ε) = δ_r in 40 digits, and how far `exact` falls short of it.

    Newton's method on ln δ, which is concave and decreasing: from the closed form, right of the
    root, every step lands between the root and the one before, so that neither `exact` nor a
    bracket of it has any part in the answer.
    """
    from mpmath import erfc, exp, log, mpf, sqrt, workdps

    with workdps(DIGITS):
        target = log(mpf(setting.delta))
        rho = (
            setting.num_steps
            * mpf(setting.epsilon_step) ** 2
            / (4 * log(mpf("1.25") / mpf(setting.delta_step)))
        )
        mu = sqrt(2 * rho)

        def log_delta_and_slope(epsilon):
            missed = exp(epsilon) * erfc((epsilon / mu + mu / 2) / sqrt(2)) / 2
            delta = erfc((epsilon / mu - mu / 2) / sqrt(2)) / 2 - missed
            return log(delta), -missed / delta

        root = mpf(0)
        if log_delta_and_slope(root)[0] > target:
            root, step = rho + 2 * sqrt(-rho * target), mpf(1)
            while abs(step) > mpf("1e-16") * sqrt(rho):
                value, slope = log_delta_and_slope(root)
                step = (value - target) / slope
                root -= step
        return float(root), float(root - mpf(exact))


# --------------------------------------------------------------------------------------------------


def _minima(pairs: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """For every (ρ, δ) the least αρ + ln(1/δ)/(α − 1), and dp_accounting's best order.

    Minimised over u = ln(α − 1) in [−20, 20], all settings at once; no formula for the answer takes
    part.
    """
    import numpy as np

    rho, delta = np.array(pairs).T

    def mironov(u):
        return rho + rho * np.exp(u) - np.log(delta) * np.exp(-u)

    def conversion(u):  # Canonne, Kamath & Steinke 2020, proposition 12
        order = 1 + np.exp(u)
        return rho * order + np.log1p(-1 / order) - np.log(delta * order) * np.exp(-u)

    minimum = mironov(_least(mironov, len(pairs)))
    orders = 1 + np.exp(_least(conversion, len(pairs)))
    return [(float(least), float(order)) for least, order in zip(minimum, orders, strict=True)]


def _least(function: Callable, size: int):
    """Golden-section search over an array of problems at once.

    `function` takes and returns arrays of that size.

    It ends where rounding hides the slope, about 1e-8 from the minimum, and 1e-16 above it.
    """
    import numpy as np

    golden = (math.sqrt(5) - 1) / 2
    low, high = np.full(size, -20.0), np.full(size, 20.0)
    for _ in range(60):
        left, right = high - golden * (high - low), low + golden * (high - low)
        smaller = function(left) < function(right)
        low, high = np.where(smaller, low, left), np.where(smaller, right, high)
    return (low + high) / 2


def _checks(found: list[tuple[Setting, str, float, float, float]]) -> Iterator[Check]:
    for name, (statement, allowed) in CHECKS.items():
        values = [value for _, check, _, _, value in found if check == name]
        worst = max(values, key=lambda value: math.inf if math.isnan(value) else value, default=0.0)
        yield Check(
            name,
            statement,
            allowed,
            len(values),
            worst,
            sum(not value <= allowed for value in values),
        )
