"""Steps of several noises: `dpmf epsilon gaussian --phases`."""

import pytest

from accounting import loss, price


def test_phases_of_several_noises_cost_what_their_losses_cost(priced, dpmf):
    words = ["--delta", "1e-6", "--user-ratings", "3", "--mechanism", "gaussian-joint-noise"]
    found = priced("gaussian", "--phases", "20x1", "8x300", *words)
    losses = [
        loss.Gaussian(noise_multiplier=20.0, num_steps=1),
        loss.Gaussian(noise_multiplier=8.0, num_steps=300),
    ]
    for name, value in price.accountants(losses, 1e-6, unit="rating value").items():
        assert found[name] == pytest.approx(value, rel=1e-12)
    assert found["rho"] == pytest.approx(1 / 800 + 300 / 128)
    assert (found["steps"], found["epsilon"]) == (301, found["exact"])
    assert found["phases"] == [
        {"noise_multiplier": 20.0, "steps": 1},
        {"noise_multiplier": 8.0, "steps": 300},
    ]
    assert [
        found[name] for name in ("noise_multiplier", "sigma", "sensitivity", "epsilon_step")
    ] == [None] * 4
    assert found["user"]["rho"] == pytest.approx(6 * found["rho"])
    turned = priced("gaussian", "--phases", "8x300", "2.0e1x1", *words)
    assert all(found[name] == pytest.approx(turned[name], rel=1e-12) for name in found["kinds"])
    code, out, _ = dpmf("gaussian", "--phases", "20x1", "8x300", *words)
    assert code == 0
    assert "phases z x J = 20x1, 8x300" in out
    assert "z = σ/Δ = 20 in 1 step" in out


def test_one_phase_is_a_noise_and_a_number_of_steps(priced):
    plain = priced("gaussian", "--noise-multiplier", "8", "--steps", "300")
    for words in (["8x300"], ["8x100", "8x200"]):
        found = priced("gaussian", "--phases", *words)
        assert found.keys() == plain.keys()
        told = {"statement", "phases", "sigma", "sensitivity"}
        assert {name: found[name] for name in found.keys() - told} == {
            name: plain[name] for name in plain.keys() - told
        }
    assert plain["phases"] == [{"noise_multiplier": 8.0, "steps": 300}]


@pytest.mark.parametrize("accountant", ["exact", "closed_form", "rdp", "pld"])
def test_the_delta_of_phases_costs_no_more_than_was_asked(priced, accountant):
    words = ["gaussian", "--phases", "80x10", "40x100"]
    found = priced(*words, "--solve", "delta", "--epsilon", "2", "--accountant", accountant)
    assert 2 - 1e-5 < found[accountant] <= 2
    assert priced(*words, "--delta", repr(found["delta"]))[accountant] == found[accountant]


@pytest.mark.parametrize(
    "word",
    [
        *(
            "20",
            "x3",
            "20x",
            "0x3",
            "3x0",
            "nanx2",
            "infx2",
            "3x1.5",
            "3x-1",
            "1.2.3x4",
            "3x2x1",
            "3 x 4",
            "",
        ),
        *("3x9999999999999", "1e400x3", "1e-400x3", "3x" + "9" * 5000),
    ],
)
def test_a_phase_that_is_none_is_refused_by_its_spelling(refused, word):
    said = refused("gaussian", "--phases", "20x1", word)
    assert "NOISE_MULTIPLIERxSTEPS" in said
    assert "--phases 20x1 8x300" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--steps", "3"], "--steps means nothing here"),
        (["--noise-multiplier", "3"], "--noise-multiplier means nothing here"),
        (["--epsilon-step", "0.3"], "fix: leave out --epsilon-step"),
        (["--sigma", "3", "--sensitivity", "2"], "--sigma, --sensitivity means nothing here"),
        (["--solve", "steps", "--epsilon", "1"], "--solve steps means nothing with --phases"),
        (
            ["--solve", "sensitivity", "--epsilon", "1"],
            "--solve sensitivity means nothing with --phases",
        ),
        (["--epsilon", "1"], "--solve epsilon|delta"),
        (["--solve", "delta"], "missing --epsilon"),
        (["--solve", "delta", "--epsilon", "1", "--delta", "0.1"], "too many --delta"),
    ],
)
def test_phases_replace_the_noise_and_the_steps(refused, words, told):
    assert told in refused("gaussian", "--phases", "20x1", "8x300", *words)


def test_phases_are_some_and_countable(refused):
    assert "--phases must be at least one" in refused("gaussian", "--phases")
    assert "at most together" in refused("gaussian", "--phases", "3e9x999999999999", "3e9x2")
