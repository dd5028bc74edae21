"""Who sees what of als: a curator who holds the ratings, or a recommender who holds none.

Before an untrusted recommender every number that a pass opens (counts, sums of messages, mean
scales, Gram matrices) is a sum over users, mod 2^32, through the secure sum of
`federated.messages`: uint32 messages, masked, added up by a third party, opened by the recommender.
Every user of the declared catalogue sends in every pass, also one without ratings, and adds to
each number a share of noise of her own (`noise.normal_shares`). So no party ever holds a sum
without noise. What a user is sent is public, a function of opened sums.

A neighbouring data set has all ratings of one user more or less, or others in their place. Her
device takes part in both, so her own share is noise that is the same in both worlds: it is not
counted on, and neither are the shares of who drops out or colludes. k shares of others are. Their
sum has the price of normal noise of σ = σ₁√k (`normal_shares`), and all further shares are noise
beside it.

The program plays all parts. It draws the noise of all n shares at once, as one rounded normal of
scale s ≥ σ₁√n > σ with the variance of their sum (`normal_shares.deviation`): a run of the program
is at least as private as the protocol is priced, and as exact as the protocol is where nobody drops
out. Estimates are told s, not σ.
"""

from __future__ import annotations

from typing import NamedTuple

from accounting import words
from dpmf_jax.mechanisms import claims


class Trust(NamedTuple):
    """Sentences of a guarantee: `accounting.guarantee.Guarantee` has these fields.

    released: beside what a phase releases.
    """

    model: str
    released: tuple[str, ...]
    against: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...]


def trust(honest_shares: int | None, *, features: bool, budgets: bool) -> Trust:
    """Who sees what, and what the claim rests on.

    Args:
      honest_shares: k; None for a curator. features: whether there are public features of
        items. budgets: whether users have budgets of their own, as a curator's may.
    """
    declared = (words.DECLARED, *((words.FEATURES,) if features else ()))
    if honest_shares is None:
        return Trust(
            model=words.CURATOR,
            released=(),
            against=words.JOINTLY,
            assumptions=(*declared, *((words.BUDGETS,) if budgets else ()), *claims.WHOLE),
            not_covered=(words.OWN_LIST,),
        )
    everybody, own_list = words.JOINTLY
    return Trust(
        model=(
            "untrusted recommender, which sees the noisy sums of every pass; a third party sees"
            " masked messages and does not collude with it; nobody holds a sum without noise"
        ),
        released=("the noisy sums of every pass",),
        against=(
            everybody,
            (
                "recommender",
                "the claim: it sees the noisy sums of every pass, in all of them, and who takes"
                " part",
            ),
            words.MASKED,
            words.TOGETHER,
            (
                "colluding users",
                (
                    "the claim, with or without the recommender, as long as at least"
                    f" {honest_shares} others who take part do not: they know their shares of the"
                    " noise, and the price is that of the others'"
                ),
            ),
            own_list,
        ),
        assumptions=(
            (
                f"at least {honest_shares} users other than the protected one add a share of noise"
                " to every number of every pass and keep it secret: who drops out or colludes does"
                " not count"
            ),
            "who takes part in which pass does not depend on the ratings",
            words.EMPTY_MESSAGES,
            (
                "a user's device clips her whole message, and makes it from her own ratings and"
                " what is public alone"
            ),
            "the recommender and the third party follow the protocol, and are curious",
            words.APART,
            *declared,
            *claims.WHOLE,
        ),
        not_covered=(
            words.OWN_LIST,
            "who is in the catalogue, and whose devices take part",
            words.NOT_TOGETHER,
        ),
    )
