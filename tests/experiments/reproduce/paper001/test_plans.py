"""What a figure of paper 001 trains beside the paper's settings."""

from experiments.reproduce.paper001 import plans
from experiments.reproduce.paper001.figures import FIGURES, NON_PRIVATE, Request


def counted(name, **asked):
    plan = plans.plan(FIGURES[name], Request(**asked))
    return plan, {(s.rank, s.series, s.beside): (s.num_steps, s.seeds) for s in plan.beside}


def test_auto_trains_little_on_a_cpu_and_everything_at_full_scale():
    plan, made = counted("001/fig1", beside="auto")
    assert len(made) == 6 * 3 + 1
    assert made[20, "0.15", "joint-noise"] == (791, (0,))
    assert made[20, NON_PRIVATE, NON_PRIVATE] == (2489, (0,))  # the longest private
    assert plan.not_beside == ""
    assert {seeds for _, seeds in counted("001/fig4", beside="auto", scale="full")[1].values()} == {
        (0, 1, 2)
    }
    small, made = counted("001/fig7", beside="auto")
    assert {rank for rank, _, _ in made} == {4, 12, 20}
    assert len(made) == 3 * (5 * 3 + 1)
    assert "rank 44, 60, 96, 128" in small.not_beside
    every, made = counted("001/fig7", beside="all")
    assert {rank: seeds for (rank, _, _), (_, seeds) in made.items()} == {
        **dict.fromkeys((4, 12, 20, 44, 60), (0, 1, 2)),
        **dict.fromkeys((96, 128), (0,)),
    }
    assert every.not_beside == ""
    assert len(counted("001/fig7", beside="auto", scale="full")[1]) == 11 * 16
    assert counted("001/fig10", beside="auto")[1] == counted("001/fig7", beside="auto")[1]
    assert {seeds for _, seeds in counted("001/fig1", beside="auto", seeds=(7, 8))[1].values()} == {
        (7,)
    }


def test_what_is_not_trained_beside_is_said():
    for scale in ("small", "full"):
        plan, made = counted("001/fig19", beside="all", scale=scale)
        assert made == {}
        assert "not private" in plan.not_beside
    plan, made = counted("001/fig1", beside="none")
    assert made == {}
    assert "--beside none" in plan.not_beside
    assert counted("001/fig16", beside="all")[0].not_beside == ""
    assert counted("001/fig1", beside="all", series=(NON_PRIVATE,))[1] == {}
