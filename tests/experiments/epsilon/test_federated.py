"""`dpmf epsilon federated`: noisy iterations of paper 003, claimed and per user."""

import pytest

from tests.cases.epsilon import CLIPPED


def test_federated_iterations_add_up(priced):
    found = priced("federated", "--epsilon", "0.1", "--iterations", "100")
    assert (found["paper"], found["basic"], found["status"]) == (0.1, 10.0, "claimed")
    assert found["epsilon"] == 10.0
    words = ["federated", "--clip-norm", "1", "--honest-shares", "10", "--iterations", "100"]
    gaussians = priced(*words, "--epsilon", "1")
    assert 1 - 1e-9 < gaussians["exact"] <= 1
    assert (gaussians["unit"], gaussians["status"], gaussians["delta"]) == (
        "user",
        "proved for real-number noise",
        1e-5,
    )
    pure = priced(*words, "--noise", "l2-laplace", "--scale", "100")
    assert (pure["basic"], pure["delta"]) == (2.0, 0.0)
    assert (
        priced(*words, "--noise", "l2-laplace", "--scale", "100", "--change", "remove")["basic"]
        == 1.0
    )
    assert (
        priced(*words, "--noise", "l2-laplace", "--scale", "100", "--delta", "1e-5")["optimal"] < 2
    )


@pytest.mark.parametrize(
    ("words", "unknown", "at_least"),
    [
        (
            ["federated", *CLIPPED, "--noise", "laplace", "--delta", "1e-5", "--iterations", "100"],
            "scale",
            0.999,
        ),
        (
            ["federated", *CLIPPED, "--noise", "laplace", "--delta", "1e-5", "--scale", "70"],
            "iterations",
            0.98,
        ),
        (["federated", *CLIPPED, "--noise", "l2-laplace", "--scale", "70"], "iterations", 0.96),
        (["federated", *CLIPPED, "--scale", "70"], "iterations", 0.99),
        (["federated", *CLIPPED, "--iterations", "100"], "scale", 0.999),
        (["federated", *CLIPPED, "--scale", "70", "--iterations", "100"], "delta", 0.999),
        (
            ["federated", *CLIPPED, "--scale", "70", "--iterations", "100", "--noise", "laplace"],
            "delta",
            0.999,
        ),
    ],
)
def test_what_federated_solves_is_stated_at_the_target(dpmf, priced, words, unknown, at_least):
    asked = [*words, "--solve", unknown, "--epsilon", "1"]
    found = priced(*asked)
    assert found["solved"] == unknown
    assert at_least < found["epsilon"] <= 1
    assert found["stated_epsilon"] <= 1
    code, out, _ = dpmf(*asked)
    assert code == 0
    solved = next(line for line in out.splitlines() if line.startswith("solved: ")).partition(",")[
        0
    ]
    assert at_least < (back := priced(*words, *solved.split()[1:]))["epsilon"] <= 1
    assert back["solved"] == "epsilon"
    if unknown == "iterations":
        more = [*words, "--iterations", found["iterations"] + 1]
        assert priced(*more)["epsilon"] > 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["federated", "--iterations", "3"], "missing --epsilon"),
        (
            ["federated", "--iterations", "0", "--epsilon", "1"],
            "--iterations must be an integer of at least 1",
        ),
        (
            ["federated", "--iterations", "3", "--epsilon", "-1"],
            "--epsilon must be positive and finite",
        ),
        (
            ["federated", "--iterations", "3", "--epsilon", "1", "--scale", "2"],
            "--scale means nothing here",
        ),
        (
            ["federated", "--iterations", "3", "--clip-norm", "1", "--scale", "2"],
            "missing --honest-shares",
        ),
        (
            ["federated", "--iterations", "3", "--clip-norm", "1", "--honest-shares", "2"],
            "(missing)",
        ),
        (
            ["federated", "--iterations", "3", "--epsilon", "1", "--solve", "scale"],
            "--solve means nothing here",
        ),
        (
            [
                "federated",
                *CLIPPED,
                "--scale",
                "1",
                "--epsilon",
                "1",
                "--solve",
                "scale",
                "--iterations",
                "3",
            ],
            "--scale",
        ),
        (
            ["federated", *CLIPPED, "--scale", "1", "--epsilon", "1", "--solve", "iterations"],
            "not one iteration",
        ),
        (["federated", *CLIPPED, "--scale", "1", "--solve", "iterations"], "missing --epsilon"),
        (
            ["federated", *CLIPPED, "--scale", "1", "--iterations", "3", "--delta", "0"],
            "--delta must be between 0",
        ),
    ],
)
def test_what_federated_refuses(refused, words, told):
    assert told in refused(*words)
