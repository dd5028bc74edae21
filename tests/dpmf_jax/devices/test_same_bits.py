"""Mechanisms whose statistics are whole numbers make the same model, to the bit, on any number of
devices, in either layout, streamed or not, whatever the order of the ratings.
"""

import json

import pytest

from tests.cases.processes import python

PROGRAM = """
    import json
    import sys
    from dataclasses import replace

    import jax
    import numpy as np

    from dpmf_jax import layout, protocol
    from dpmf_jax.data.ratings import Ratings
    from dpmf_jax.noise import keys
    from dpmf_jax.layout import stream
    from dpmf_jax.mechanisms.als import budgets
    from dpmf_jax.mechanisms.als import config as als_config
    from dpmf_jax.mechanisms.als import implicit, implicit_config
    from dpmf_jax.mechanisms.als import phases as als
    from dpmf_jax.mechanisms.als import ridge
    from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
    from dpmf_jax.mechanisms.gaussian import noisy_means
    from dpmf_jax.mechanisms.objective import mechanisms as objective
    from dpmf_jax.mechanisms.sampled import langevin
    from dpmf_jax.mechanisms.sketch import dpsgd as sketch
    from dpmf_jax.mechanisms.user_means import levels
    from dpmf_jax.noise import chacha

    stream.BLOCK_BYTES = 1 << 14
    USERS, ITEMS = 2_000, 400
    random = np.random.default_rng(0)
    pairs = random.choice(USERS * ITEMS, 30_000, replace=False)
    values = random.integers(1, 11, 30_000).astype(np.float32) / 2
    config = gaussian.Config(rating_range=(0.5, 5.0), noise_multiplier=6.0, rank=17)
    presence = gaussian.Config(
        rating_range=(0.5, 5.0), noise_multiplier=6.0, relation="rating presence", residual_clip=1.3
    )
    means = noisy_means.Config(rating_range=(0.5, 5.0), noise_multiplier=3.0)
    sampled = langevin.Config(
        rating_range=(0.5, 5.0),
        noise_multiplier=1.5,
        num_steps=4,
        sampling_rate=0.2,
        rank=7,
        learning_rate=0.01,
        decay=2.0,
        depth=3,
        gain=4.0,
        initial_scale=0.5,
        query="median" if sys.argv[2] == "chacha" else "mean",
    )
    perturbed = objective.Config(
        epsilon=1.0, rating_range=(0.5, 5.0), prior_count=200, rank=5, num_passes=4, center=3.0
    )
    made = {
        "joint": (gaussian.joint_noise(config), 4),
        "presence": (gaussian.joint_noise(presence), 4),
        "public items": (gaussian.public_items(config), 4),
        "noisy means": (noisy_means.mechanism(means), 2),
        "user means": (
            levels.mechanism(
                levels.Config(rating_range=(0.5, 5.0), noise_multiplier=3.0, center=3.0)
            ),
            2,
        ),
        "dpsgd": (langevin.dpsgd(sampled), 4),
        "langevin": (langevin.dp(sampled), 4),
        "sketch": (sketch.mechanism(sampled), 4),
        "statistics": (
            objective.statistics(replace(perturbed, noise="gaussian", delta=1e-5)), 1
        ),
        "public users": (objective.public_users(replace(perturbed, noise="laplace")), 1),
        "als": als.phases(
            als_config.Config(
                rating_range=(0.5, 5.0), noise_multiplier=0.2, rank=3, num_passes=2
            )
        ),
        "als with options": als.phases(
            als_config.Config(
                rating_range=(0.5, 5.0), noise_multiplier=0.2, rank=3, num_passes=2,
                non_negative=True, budgets=(
                    budgets.Budget(1.0, USERS // 2, 0.9), budgets.Budget(9.0, USERS // 2, 0.2)
                ),
            ),
            None,
            np.arange(USERS) % 2,
        ),
        "als-implicit": implicit.phases(
            implicit_config.Config(
                num_users=USERS, noise_multiplier=0.2, rank=3, num_passes=2
            )
        ),
        "ridge": (
            ridge.mechanism(
                ridge.Config(
                    rating_range=(0.5, 5.0), noise_multiplier=3.0, num_items=ITEMS, rank=3
                )
            ),
            2,
        ),
    }[sys.argv[1]]
    *earlier, (mechanism, steps) = made if sys.argv[1].startswith("als") else (made,)
    key = keys.from_seed(1)
    if sys.argv[2] == "chacha":
        key = jax.random.key(1, impl=chacha.IMPL)

    def model(order, kind, devices):
        p = pairs[order]
        columns = ((p // ITEMS).astype(np.int32), (p % ITEMS).astype(np.int32), values[order])
        ratings = Ratings(*columns, np.arange(USERS), np.arange(ITEMS), (0.5, 5.0))
        if sys.argv[1] == "als with options":
            ratings = replace(ratings, weight=(p % 9 / 8).astype(np.float32))
        data = layout.make(ratings, kind=kind, num_devices=devices)
        init_key, train_key = jax.random.split(key)
        state = protocol.begin(mechanism, init_key, data, earlier)
        state, _ = protocol.train(mechanism, train_key, state, data, steps)
        shown = jax.tree.leaves(mechanism.release(state))
        if sys.argv[1].startswith("als"):  # users' own factors follow from the release
            shown.append(state.private.user_factors)
        return jax.device_get(shown)

    straight = np.arange(len(pairs))
    first = model(straight, "split", 1)
    layouts = [("split", 8)]
    if sys.argv[3] != "few":
        layouts.append(("dense", 2))
    if sys.argv[3] == "every":
        layouts += [("split", 2), ("dense", 4), ("dense", 1), ("stream", 1)]
    others = {
        f"{kind}, {devices} devices": model(straight, kind, devices) for kind, devices in layouts
    }
    others["another order"] = model(random.permutation(len(pairs)), "split", 1)
    same = {
        name: all(a.tobytes() == b.tobytes() for a, b in zip(first, leaves, strict=True))
        for name, leaves in others.items()
    }
    print(json.dumps({"same": same, "moved": any(np.ptp(leaf) > 0 for leaf in first)}))
"""


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("mechanism", "layouts", "generator"),
    [
        ("presence", "every", "threefry"),
        *((name, "some", "threefry") for name in ("joint", "dpsgd", "ridge")),
        *((name, "few", "threefry") for name in ("public items", "noisy means", "user means")),
        *((name, "few", "threefry") for name in ("langevin", "sketch")),
        *((name, "few", "threefry") for name in ("statistics", "public users")),
        *((name, "few", "threefry") for name in ("als", "als-implicit", "als with options")),
        ("joint", "few", "chacha"),  # `test_poisson` has samples of ChaCha20 on several devices
    ],
)
def test_the_model_has_the_same_bits(mechanism, layouts, generator):
    """One mechanism in every layout, on every number of devices; one of each way to use the ratings
    (their sums, a sample of them, a system for each user) also dense on two; all on eight.
    `test_stream` has those that are streamed.
    """
    words = mechanism, generator, layouts
    found = json.loads(python(PROGRAM, *words, devices=8).stdout.splitlines()[-1])
    assert found["moved"]
    assert found["same"] == dict.fromkeys(found["same"], True)
    assert len(found["same"]) == {"few": 2, "some": 3, "every": 7}[layouts]
