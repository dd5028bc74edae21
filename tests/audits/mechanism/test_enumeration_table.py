"""The law of one report as a table: exact against whole numbers, of every entry that worlds had."""

import decimal
import math
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from audits.mechanism import enumeration_table
from audits.mechanism.enumeration_table import Table, largest_ratio, table
from audits.mechanism.enumeration_worlds import Seen, World
from dpmf_jax.noise import laws as noise
from dpmf_jax.noise.laws import Report
from tests.cases.audits import report_of


@pytest.mark.seconds
@pytest.mark.parametrize("epsilon", [1e-3, 0.05, 0.7, 5.0, 20.0])
def test_the_table_is_the_law_in_whole_numbers(epsilon):
    """Against integers out of 2^64 and 50 digits: to 1e-12 of the price at the extremes.

    In between, programs differ in how they round one float32.
    """
    entries = np.concatenate(
        [np.array(enumeration_table.EXTREMES), np.linspace(-1.5, 1.5, 101)]
    ).astype(np.float32)
    made = noise.one_bit(epsilon)
    law_table = table(made, report_of(3), 1, entries)
    law = [Fraction(p, 2**64) for p in noise.one_bit_law(epsilon, jnp.asarray(entries))]
    with decimal.localcontext(prec=50):
        for entry, p, (minus, nothing, one) in zip(entries, law, law_table.log, strict=True):
            logs = [float((decimal.Decimal(x.numerator) / x.denominator).ln()) for x in (1 - p, p)]
            extreme = not 0 < abs(entry) < 1
            np.testing.assert_allclose(
                [minus, one], logs, rtol=0, atol=1e-12 * epsilon if extreme else 2**-22
            )
            assert nothing == -math.inf
    assert largest_ratio(law_table)[0] == pytest.approx(epsilon, rel=1e-12)
    assert (
        made.log_prob(
            report_of(3)._replace(value=jnp.ones(3)), report_of(3)._replace(value=jnp.zeros(3))
        ).dtype
        == jnp.float32
    )


def test_a_table_that_is_no_law_has_no_largest_ratio():
    log = np.log([[0.5, 0.5], [0.5, 0.5]])
    assert largest_ratio(Table(np.zeros(2), np.insert(log, 1, -np.inf, axis=1)))[0] == 0
    broken = np.insert(log, 1, [-np.inf, np.nan], axis=1)
    assert math.isnan(largest_ratio(Table(np.zeros(2), broken))[0])
    certain = np.array([[0.0, -np.inf, -np.inf], [-1.0, -np.inf, -0.5]])
    assert largest_ratio(Table(np.zeros(2), certain))[0] == math.inf


def test_what_a_users_worlds_had_is_enumerated_too():
    had = np.float32([0.123, -0.456, 0.789])
    report = Report(
        np.zeros(3, np.int32), np.zeros(3, np.int32), had, np.array([True, True, False])
    )
    worlds = [
        World(user, Seen(report, report), Seen(report, report), had > 9, {}) for user in (0, 1)
    ]
    entries = enumeration_table.entries(np.random.default_rng(0), 1, worlds)
    assert set(had[:2]) <= set(entries)
    assert had[2] not in entries
    assert np.isnan(entries).any()
    assert np.isinf(entries).sum() >= 2
    assert np.sum((np.abs(entries) > 0) & (np.abs(entries) < 1)) > 40
