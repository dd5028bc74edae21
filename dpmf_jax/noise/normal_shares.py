"""Shares of normal noise in whole numbers: many users draw one each, and nobody holds the sum bare.

A share is ⌊g⌉ for g ~ N(0, σ₁²), drawn from the tables of `whole`; shares and statistics are
elements of Z_2^32. Let k shares be those that can be relied on, σ² = k·σ₁², and

    h(n) = P(⌊Z + U_1 + … + U_(k-1)⌉ = n),   Z ~ N(0, σ²), every U uniform on [-1/2, 1/2].

**The price of h.** Statistics q are whole, so q + ⌊Z + ΣU⌉ = ⌊(q + Z) + ΣU⌉. This is a function of
q + Z, which the Gaussian mechanism with σ releases, and of numbers that know no data. So noise of
the law h costs what that mechanism costs, exactly. So does h with more shares beside it, and
whatever wraps around.

**The sum of k shares has almost the law h.** Let f_σ be the density of N(0, σ²). A share is i with
probability E f_σ₁(i - U). So the sum of k shares is n with probability

    p(n) = E Σ_i f_σ₁(i_1 - U_1) … f_σ₁(i_k - U_k),   over whole i that add up to n,

while h(n) = E f_σ(n - U_1 - … - U_k): the last U is what rounding does. Given U, the product is the
density of independent g_1, …, g_k at i - U, whose sum is n - ΣU. So it is f_σ(n - ΣU) times the
density of g_1, …, g_(k-1) given the sum. That is a normal one, with some centre c and covariance
S = σ₁²(I - 11ᵀ/k). By Poisson's summation formula its values at all points of a shifted lattice
Z^(k-1) add up to

    Σ_m exp(2πi⟨m, c⟩)·exp(-2π²·mᵀSm),   over whole m of k - 1 entries,

which is 1 (m = 0) and something that no centre makes larger than

    η = Σ_(m ≠ 0) exp(-a·(‖m‖² - (Σm)²/k)),   a = 2π²σ₁².

So |p(n) - h(n)| ≤ η·h(n) for every n, and the total variation is at most η/2.

**A bound on η.** Give m a k-th entry, 0. The exponent is Σ(m_i - mean)², which stays as it is where
1 is added to all entries: m stands for a class of such rows, and the one whose mean is from -1/2 to
1/2 may be taken for it. Let N = ‖m‖² there and s = Σm. Then |s| ≤ k/2, and |s| ≤ N since entries
are whole.

- N = 1: at most 2k rows, of exponent 1 - 1/k each.
- N ≥ 2: s²/k ≤ |s|/2 ≤ N/2, so the exponent is at least N/2. Over all whole rows of k entries,
  exp(-a·N/2) adds up to (1 + e)^k, with e = 2Σ_(j ≥ 1) exp(-a·j²/2). Less the rows of N = 0 and
  N = 1 that is, with x = k·e, at most x²·exp(x)/2 + 2k·Σ_(j ≥ 2) exp(-a·j²/2).

At σ₁ = 2.5 and a million shares it is below 1e-40.

**What is left.** Each share is drawn from its table, within `whole.DISTANCE` of its law: k of them
for each number. `distance` adds both up. What it costs of δ, `accounting.price` says.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from dpmf_jax.noise import whole

SLACK = 1 + 2.0**-30  # for what floats round
UNDERFLOW = 2.0**-1000  # and for what they cannot hold


def law(share_scale: float) -> whole.Law:
    """What `draw` draws from: σ₁ in units, a number that float32 has, from 2^-20 to 111,000.

    Raises: ValueError for another one.
    """
    return whole.Law(*map(jnp.asarray, whole.numbers(float(share_scale))))


def draw(key: jax.Array, law: whole.Law, shape: tuple[int, ...]) -> jax.Array:
    """uint32[shape], independent: one user's shares of the noise in so many sums. Spends `key`.

    Guarantee: none alone. k of them that others keep secret give every sum noise of the price of
      N(0, k·σ₁²), see the module, but for `distance` a number.
    """
    return whole.draw(law, key, shape)


def aliasing(share_scale: float, num_shares: int) -> float:
    """A bound on η: by so large a part a probability of the sum of shares is not that of h.

    share_scale: σ₁. num_shares: k. inf where it is beyond floats.
    """
    if num_shares == 1:
        return 0.0  # h is the law of the one share
    a = 2 * math.pi**2 * share_scale**2
    each = 2 * math.exp(-a / 2) / (1 - math.exp(-3 * a / 2))  # e
    further = math.exp(-2 * a) / (1 - math.exp(-5 * a / 2))
    x = num_shares * each
    if x > 1:
        return math.inf
    single = 2 * num_shares * math.exp(-a * (1 - 1 / num_shares))
    found = single + x**2 * math.exp(x) / 2 + 2 * num_shares * further
    return found * SLACK + UNDERFLOW


def distance(share_scale: float, num_shares: int) -> float:
    """A bound on the total variation between the sum of k drawn shares and h, of one number.

    At most 1.
    """
    return min(1.0, num_shares * whole.DISTANCE + aliasing(share_scale, num_shares) / 2)


def deviation(share_scale: float, num_shares: int) -> float:
    """The scale of one rounded normal that stands for the sum of so many shares: σ₁√(k + …).

    A share has variance σ₁² + 1/12 (but for aliasing), and a rounded normal of scale s has
    s² + 1/12. So s² = k·σ₁² + (k - 1)/12 gives the sum's mean, variance and third moment; the
    fourth cumulants differ by (k - 1)/120. As s ≥ σ₁√k, the one draw is at least as private as h.
    """
    return math.sqrt(num_shares * share_scale**2 + (num_shares - 1) / 12)
