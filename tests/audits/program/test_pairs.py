"""Pairs of data sets: neighbours by their unit, random ones and those that tempt."""

import numpy as np
import pytest

from audits.program import pairs
from tests.zoo.sound import RATINGS


@pytest.mark.parametrize("unit", ["rating value", "rating presence", "user"])
def test_pairs_are_neighbours_by_their_unit(unit):
    made = pairs.choose(np.random.default_rng(0), RATINGS, unit, 2)
    assert len(made) == (3 if unit == "rating value" else 5)
    fewer = pairs.choose(np.random.default_rng(0), RATINGS, unit, 1, tempting=("item",))
    assert [pair.words["chosen"] for pair in fewer][1:] == ["the only rating of its item"][
        : unit != "rating value"
    ]
    for pair in made:
        own, there = (
            {
                (u, i): v
                for u, i, v in zip(w.user.tolist(), w.item.tolist(), w.value.tolist(), strict=True)
            }
            for w in (pair.first, pair.second)
        )
        changed = {at for at in own | there if own.get(at) != there.get(at)}
        users = {user for user, _ in changed}
        if unit == "user":
            assert len(users) == 1
            assert not any(user in users for user, _ in there)
        else:
            assert len(changed) == 1
        assert (len(own) == len(there)) == (unit == "rating value")
        assert pair.second.num_items == RATINGS.num_items
    top = next(pair for pair in made if pair.words["chosen"].startswith("alone"))
    assert np.sum(top.first.value == RATINGS.value.max()) == 1
    if unit == "rating presence":
        lone = next(pair for pair in made if pair.words["chosen"] == "the only rating of its item")
        assert len(np.unique(lone.second.item)) == len(np.unique(lone.first.item)) - 1
