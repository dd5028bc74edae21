"""Six small checks of an installation, each against NumPy, a formula, or a second run."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings


class Check(NamedTuple):
    """One check: what it claims, whether that holds, and the numbers or the error."""

    name: str
    passed: bool
    detail: str


class Failed(Exception):
    """A check's answer is no."""


def run() -> list[Check]:
    """Every check, in order. One that raises has failed, and the rest still run."""
    return [_answer(name, question) for name, question in QUESTIONS.items()]


def _answer(name: str, question: Callable[[], str]) -> Check:
    try:
        return Check(name, True, question())
    except Failed as error:
        return Check(name, False, str(error))
    except Exception as error:  # whatever is broken on this machine is the answer
        return Check(name, False, " ".join(f"{type(error).__name__}: {error}".split()))


def _agree(what: str, ours: Any, theirs: Any, tolerance: float) -> str:
    distance = float(np.max(np.abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64))))
    if not distance <= tolerance:
        raise Failed(f"{what}: off by {distance:.2g}, allowed {tolerance:.2g}")
    return f"{what}: off by {distance:.1g}"


def _ratings() -> "Ratings":
    """12 users, 8 items, 60 of the 96 pairs, values 1 to 5."""
    from dpmf_jax.data.ratings import Ratings

    generator = np.random.default_rng(0)
    pairs = generator.permutation(96)[:60]
    values = generator.integers(1, 6, 60)
    return Ratings.from_columns(
        pairs // 8, pairs % 8, values, rating_range=(1.0, 5.0), name="self-test"
    )


def compiled() -> str:
    import jax
    import jax.numpy as jnp

    matrix = np.random.default_rng(1).standard_normal((64, 48)).astype(np.float32)
    ours = jax.jit(lambda x: jnp.matmul(x.T, x, precision="highest"))(matrix)
    return _agree("a matrix product", ours, matrix.T @ matrix, 1e-4)


def layouts() -> str:
    from dpmf_jax import layout

    ratings = _ratings()
    generator = np.random.default_rng(2)
    users = generator.standard_normal((ratings.num_users, 3)).astype(np.float32)
    items = generator.standard_normal((ratings.num_items, 3)).astype(np.float32)
    residual = ratings.value - np.sum(users[ratings.user] * items[ratings.item], axis=1)
    expected = np.zeros_like(users)
    np.add.at(expected, ratings.user, residual[:, None] * items[ratings.item])

    def row(user, columns, values, present):
        return (present * (values - columns @ user)) @ columns

    said = [
        _agree(
            kind,
            layout.sum_by_user(layout.make(ratings, kind=kind), row, users, items),
            expected,
            1e-4,
        )
        for kind in ("split", "dense")
    ]
    return ", ".join(said)


def randomness() -> str:
    import jax

    from dpmf_jax.noise import keys

    low, high = (
        np.asarray(jax.random.key_data(keys.from_seed(seed))) for seed in (1, 1 + (1 << 32))
    )
    if np.array_equal(low, high):
        raise Failed("two seeds that differ above bit 32 give one key")
    first, second = (
        np.asarray(jax.random.normal(keys.from_operating_system(), (20_000,))) for _ in range(2)
    )
    if np.array_equal(first, second):
        raise Failed("two keys of the operating system are the same")
    deviation = float(np.std(np.concatenate([first, second])))
    return _agree("standard deviation of 40,000 normals", deviation, 1.0, 6 / math.sqrt(80_000))


def price() -> str:
    """ε at ρ = 1/2 against two normals one apart: δ = Φ(½ − ε) − e^ε Φ(−½ − ε) at μ = 1."""
    from accounting import gaussian

    epsilon, delta = gaussian.epsilon_exact(0.5, 1e-5), 1e-5

    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    back = phi(0.5 - epsilon) - math.exp(epsilon) * phi(-0.5 - epsilon)
    if not epsilon <= gaussian.epsilon_closed_form(0.5, delta):
        raise Failed("the exact price is above the closed form")
    return f"ε = {epsilon:.4f} at ρ = 0.5; " + _agree("δ back from ε", back / delta, 1.0, 1e-3)


def training() -> str:
    """The same seed gives the same bytes, in chunks of any length; another seed gives others."""
    import dpmf_jax
    from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian

    mechanism = gaussian.joint_noise(
        gaussian.Config(rating_range=(1.0, 5.0), noise_multiplier=10.0, rank=3)
    )

    def users(seed: int, chunk_steps: int) -> np.ndarray:
        model = dpmf_jax.fit(_ratings(), mechanism, num_steps=4, seed=seed, chunk_steps=chunk_steps)
        factors = np.asarray(model.release.user_factors)
        if not np.isfinite(factors).all():
            raise Failed("a private fit of four steps left the finite numbers")
        return factors

    first, again, other = users(0, 4), users(0, 2), users(1, 4)
    if not np.array_equal(first, again):
        raise Failed("2 + 2 steps are not the bytes of 4")
    if np.array_equal(first, other):
        raise Failed("two seeds give one model")
    return "four private steps; 2 + 2 are the bytes of 4"


def saving() -> str:
    """What is saved is what is loaded."""
    import tempfile

    from safetensors.numpy import load_file, save_file

    factors = np.random.default_rng(3).standard_normal((5, 3)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        save_file({"factors": factors}, f"{folder}/factors.safetensors")
        if not np.array_equal(load_file(f"{folder}/factors.safetensors")["factors"], factors):
            raise Failed("a saved array comes back changed")
    return "an array comes back to the byte"


QUESTIONS = {
    "a compiled computation agrees with NumPy": compiled,
    "both layouts agree with NumPy": layouts,
    "keys differ and noise has its scale": randomness,
    "a price agrees with its formula": price,
    "a private fit runs and repeats": training,
    "files are written and read": saving,
}
