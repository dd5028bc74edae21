"""`dpmf epsilon verify`: silent on what is right, loud on every planted error, whatever hides it
elsewhere.
"""

import csv
import json
import math
import sys

import dp_accounting
import mpmath
import pytest

from accounting import epsilon_table, gaussian, gaussian_bounds, verification
from experiments.cli import main as cli

SMALL = {"num_settings": 60, "num_pld": 10}


@pytest.fixture(scope="module")
def honest():
    done = []
    result = verification.verify(**SMALL, progress=done.append)
    assert done == list(range(1, 61))
    return result


@pytest.fixture
def short_table(monkeypatch):
    """Three entries of the table, at ρ = 1e-4, 0.013 and 2.5."""
    monkeypatch.setattr(epsilon_table, "TABLE", tuple(epsilon_table.TABLE[i] for i in (0, 2, 28)))


# --------------------------------------------------------------------------------------------------


@pytest.mark.seconds
def test_every_check_runs_on_all_that_it_is_for_and_nothing_disagrees(honest):
    assert honest.violations == ()
    assert all(row.failed == () for row in honest.rows)
    counts = {check.name: check.count for check in honest.checks}
    assert list(counts) == list(verification.CHECKS)
    for name, count in counts.items():
        assert count == (40 if name.startswith("table") else 50 if "pld" in name else 60)
    assert honest.num_pld == 50
    assert all(check.worst <= check.allowed and check.violations == 0 for check in honest.checks)


@pytest.mark.seconds
def test_settings_beyond_theorem_1_are_marked(honest):
    assert {row.theorem_1_applies for row in honest.rows} == {True, False}
    assert all(row.theorem_1_applies == (row.setting.epsilon_step < 1) for row in honest.rows)
    assert (
        honest.num_outside_theorem == sum(row.setting.epsilon_step >= 1 for row in honest.rows) > 0
    )


def test_the_oracle_is_the_root_in_forty_digits(honest):
    with mpmath.workdps(40):
        for row in honest.rows[::6]:
            delta = mpmath.mpf(row.setting.delta)
            constant = mpmath.log(mpmath.mpf("1.25") / mpmath.mpf(row.setting.delta_step))
            mu = mpmath.mpf(row.setting.epsilon_step) * mpmath.sqrt(
                row.setting.num_steps / (2 * constant)
            )

            def excess(epsilon, mu=mu, delta=delta):
                below, above = (
                    mpmath.ncdf(mu / 2 - epsilon / mu),
                    mpmath.ncdf(-mu / 2 - epsilon / mu),
                )
                return below - mpmath.exp(epsilon) * above - delta

            assert excess(mpmath.mpf(row.oracle) * (1 - mpmath.mpf("1e-15"))) > 0
            assert excess(mpmath.mpf(row.oracle) * (1 + mpmath.mpf("1e-15"))) < 0


def test_an_epsilon_of_zero_is_right_where_delta_is_the_total_variation(monkeypatch, short_table):
    wide = verification.Setting(1e-3, 0.01, 1, 5e-3)
    monkeypatch.setattr(verification, "_random_setting", lambda draw, *, largest_rho: wide)
    result = verification.verify(num_settings=4, num_pld=0)
    assert result.rows[-1].exact == result.rows[-1].oracle == 0
    assert result.num_at_floor == 1
    assert result.violations == ()


# --------------------------------------------------------------------------------------------------


def test_settings_are_seeded_in_range_and_several_deltas_share_one_loss_distribution():
    runs = list(verification.settings(500, seed=3, num_pld=42))
    assert runs == list(verification.settings(500, seed=3, num_pld=42))
    assert runs != list(verification.settings(500, seed=4, num_pld=42))
    flat = [(setting, with_pld) for run, with_pld in runs for setting in run]
    assert len(flat) == 500
    assert sum(with_pld for _, with_pld in flat) == 40 + 42
    grid = runs[40:]
    assert [len(run) for run, with_pld in grid if with_pld] == [4] * 10 + [2]
    for run, with_pld in grid:
        assert len({setting[:3] for setting in run}) == 1
        assert len({setting.delta for setting in run}) == len(run)
        for setting in run:
            assert 1e-3 <= setting.epsilon_step <= 10
            assert 1e-8 <= setting.delta_step <= 0.1
            assert 1 <= setting.num_steps <= 100_000
            assert 1e-12 <= setting.delta <= 1e-2
            assert 1e-6 <= gaussian.rho_from_step(*setting[:3]) <= (10 if with_pld else 1e3)
    rhos = [gaussian.rho_from_step(*run[0][:3]) for run, _ in grid]
    assert min(rhos) < 1e-4
    assert max(rhos) > 100


def test_default_settings_are_the_ten_thousand_of_the_claim():
    runs = list(verification.settings(10_000, seed=1, num_pld=400))
    assert sum(len(run) for run, _ in runs) == 10_000
    assert sum(len(run) for run, with_pld in runs[40:] if with_pld) == 400


def test_the_table_is_the_forty_settings():
    table = epsilon_table.TABLE
    steps = {entry.epsilon_step for entry in table}
    assert len(table) == len({entry[:2] for entry in table}) == 40
    assert steps == {0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.8}
    assert {entry.num_steps for entry in table} == {1, 10, 100, 300, 1000}
    assert epsilon_table.Entry(0.4, 300, 13.18366, 12.25771, 11.43799, 11.43799) in table
    above = [entry.closed_form / entry.exact for entry in table]
    assert (round(min(above), 2), round(max(above), 2)) == (
        1.08,
        1.68,
    )  # the closed form's docstring has these


def test_too_few_settings_are_refused():
    for num_settings, num_pld in ((39, 0), (60, 21), (60, -1)):
        with pytest.raises(ValueError, match="num_settings must be"):
            verification.verify(num_settings=num_settings, num_pld=num_pld)


# --------------------------------------------------------------------------------------------------


def scaled(factor):
    return lambda function: lambda *arguments: function(*arguments) * factor


def plus(term):
    return lambda function: lambda *arguments: function(*arguments) + term


CLOSED, EXACT = (gaussian, "epsilon_closed_form"), (gaussian, "epsilon_exact")
PLD = (dp_accounting.pld.PLDAccountant, "get_epsilon")
RDP = (dp_accounting.rdp.RdpAccountant, "get_epsilon")
STEP = (gaussian, "noise_multiplier_from_step")


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("planted", "wrong", "seen_by"),
    [
        (CLOSED, scaled(1 + 2e-12), {"minimum"}),
        (CLOSED, scaled(1 - 2e-9), {"minimum", "mironov"}),
        (
            CLOSED,
            lambda f: lambda rho, delta: f(rho, 1.01 * delta),
            {"minimum", "mironov"},
        ),  # a wrong constant
        ((gaussian, "optimal_order"), scaled(1.01), {"mironov"}),
        (EXACT, scaled(1 + 1e-9), {"oracle"}),
        (EXACT, scaled(1 - 1e-9), {"oracle", "upper"}),
        (EXACT, scaled(1 - 2e-11), {"upper"}),
        (EXACT, scaled(math.nan), {"oracle", "upper", "exact <= rdp", "table exact"}),
        (PLD, plus(-1e-5), {"exact <= pld", "table pld"}),
        (PLD, plus(-2e-7), {"exact <= pld"}),
        (PLD, scaled(1.3), {"pld <= rdp", "table pld"}),
        (
            RDP,
            scaled(2.0),
            {"rdp <= closed", "rdp"},
        ),  # hidden in what is printed, which ends at the closed form
        (RDP, scaled(0.8), {"pld <= rdp", "exact <= rdp", "table rdp"}),
        ((gaussian, "epsilon_rdp"), scaled(1 + 2e-9), {"rdp"}),
        ((gaussian, "epsilon_basic"), scaled(0.5), {"exact <= basic"}),
        (
            STEP,
            scaled(1 + 1e-9),
            {"oracle"},
        ),  # z itself: every price moves along, the oracle does not
    ],
)
def test_a_planted_error_is_a_violation_of_the_checks_that_are_for_it(
    monkeypatch, short_table, planted, wrong, seen_by
):
    monkeypatch.setattr(*planted, wrong(getattr(*planted)))
    result = verification.verify(num_settings=15, num_pld=4)
    assert seen_by <= {violation.check for violation in result.violations}
    assert {check.name for check in result.checks if check.violations} == {
        v.check for v in result.violations
    }
    assert {row.setting for row in result.rows if row.failed} == {
        v.setting for v in result.violations
    }
    for violation in result.violations:
        assert not violation.found <= violation.allowed == verification.CHECKS[violation.check][1]
    for check in result.checks:
        assert math.isnan(check.worst) or (check.worst <= check.allowed) == (check.violations == 0)


def test_wrong_divergences_of_dp_accounting_are_seen_before_any_conversion(
    monkeypatch, short_table
):
    right = dp_accounting.rdp.RdpAccountant.rdp.fget
    monkeypatch.setattr(
        dp_accounting.rdp.RdpAccountant, "rdp", property(lambda self: right(self) * (1 + 1e-8))
    )
    result = verification.verify(num_settings=10, num_pld=0)
    assert {violation.check for violation in result.violations} == {"mironov"}


@pytest.mark.parametrize("name", ["closed_form", "rdp_default", "pld", "exact"])
def test_a_wrong_digit_in_the_table_is_a_violation_of_its_row_alone(monkeypatch, short_table, name):
    first, second, third = epsilon_table.TABLE
    second = second._replace(**{name: round(getattr(second, name) + 1e-5, 5)})
    monkeypatch.setattr(epsilon_table, "TABLE", (first, second, third))
    (violation,) = verification.verify(num_settings=3, num_pld=0).violations
    assert violation.check == f"table {name.removesuffix('_default')}"
    assert violation.setting == verification.Setting(0.05, 0.01, 100, 1e-5)
    assert violation.right == getattr(second, name)


# --------------------------------------------------------------------------------------------------


def verify(out, *more, num_settings=15):
    return cli.main(
        ["epsilon", "verify", "--num-settings", str(num_settings), "--out", str(out), *more]
    )


@pytest.mark.seconds
def test_command_writes_a_report_and_ends_with_its_summary_line(tmp_path, short_table, capsys):
    out = tmp_path / "report"
    assert verify(out) == 0
    said = capsys.readouterr()
    assert "settings: 15/15" in said.err
    (line,) = [line for line in said.out.splitlines() if line.startswith("verified: ")]
    assert line.startswith("verified: 15 settings (15 with PLD), 0 violations, ")
    assert "worst: minimum " in line
    assert ", oracle " in line
    assert sorted(path.name for path in out.iterdir()) == [
        f"epsilon-verify.{s}" for s in ("csv", "json", "md", "svg")
    ]
    told = json.loads((out / "epsilon-verify.json").read_text())
    assert told["verified"] is True
    assert [check["name"] for check in told["checks"]] == list(verification.CHECKS)
    with (out / "epsilon-verify.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 15
    for row in rows:
        rho = gaussian.rho_from_step(
            float(row["epsilon_step"]), float(row["delta_step"]), int(row["num_steps"])
        )
        assert float(row["rho"]) == rho
        assert float(row["closed_form"]) == gaussian.epsilon_closed_form(rho, float(row["delta"]))
        assert int(row["theorem_1_applies"]) == (float(row["epsilon_step"]) < 1)
        assert row["failed"] == ""
    page = (out / "epsilon-verify.md").read_text()
    assert "A look only" in page
    assert all(statement in page for statement, _ in verification.CHECKS.values())
    assert f"In {told['num_outside_theorem_1']} of them ε_i >= 1" in page
    assert "(epsilon-verify.svg)" in page
    svg = (out / "epsilon-verify.svg").read_text()
    assert svg.startswith("<?xml")
    assert "closed form / exact ε" in svg
    assert "ε_i &gt;= 1: outside Theorem 1" in svg


def test_command_prints_one_json_object(tmp_path, short_table, capsys):
    assert verify(tmp_path, "--json", "--seed", "5") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["seed"], told["num_settings"], told["num_violations"]) == (5, 15, 0)
    assert told["seconds"] > 0
    assert told["files"]["md"].endswith("epsilon-verify.md")


def test_disagreement_ends_with_code_6_after_the_report(tmp_path, short_table, monkeypatch, capsys):
    wrong = scaled(1 + 1e-9)(gaussian.epsilon_exact)
    for module in (gaussian, gaussian_bounds):
        monkeypatch.setattr(module, "epsilon_exact", wrong)
    assert verify(tmp_path, "--json") == 6
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert told["verified"] is False
    assert told["summary"].startswith("NOT VERIFIED")
    assert {violation["check"] for violation in told["violations"]} == {"oracle"}
    assert "error: " in said.err
    assert "disagreements: oracle" in said.err
    page = (tmp_path / "epsilon-verify.md").read_text()
    assert "NOT verified" in page
    first = told["violations"][0]
    assert f"epsilon_step {first['epsilon_step']!r}" in page
    assert f"epsilon_step {first['epsilon_step']!r}" in said.err
    assert "oracle" in (tmp_path / "epsilon-verify.csv").read_text()
    assert (
        json.loads((tmp_path / "epsilon-verify.json").read_text())["violations"]
        == told["violations"]
    )


def test_a_wrong_table_ends_with_code_6(tmp_path, short_table, monkeypatch):
    entry, *others = epsilon_table.TABLE
    monkeypatch.setattr(epsilon_table, "TABLE", (entry._replace(exact=0.04613), *others))
    assert verify(tmp_path, num_settings=3) == 6


def test_too_few_settings_are_a_usage_error(tmp_path, capsys):
    assert verify(tmp_path / "none", num_settings=39) == 2
    assert "--num-settings must be at least 40" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_missing_packages_are_named(tmp_path, short_table, monkeypatch, capsys):
    (tmp_path / "epsilon-verify.svg").write_text("an older run's")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert verify(tmp_path, num_settings=3) == 0
    assert "dpmf-jax[report]" in capsys.readouterr().err
    assert not (tmp_path / "epsilon-verify.svg").exists()
    assert "svg" not in (tmp_path / "epsilon-verify.md").read_text()
    monkeypatch.setitem(sys.modules, "mpmath", None)
    assert verify(tmp_path, num_settings=3) == 4
    assert "mpmath is not installed" in capsys.readouterr().err


@pytest.mark.slow
def test_a_thousand_settings_agree():
    """A tenth of those that `dpmf epsilon --verify` goes through."""
    result = verification.verify(num_settings=1_000, num_pld=40)
    assert len(result.rows) == 1_000
    assert result.num_pld == 80
    assert result.violations == ()
