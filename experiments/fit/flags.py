"""What commands that train or audit are told: which ratings, which mechanism. Fields alone, shared by inheritance."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

MechanismName = Literal[
    "gaussian",
    "gaussian-joint-noise",
    "gaussian-public-items",
    "non-private",
    "local",
    "objective",
    "objective-public-users",
    "objective-statistics",
    "federated",
    "federated-user",
    "federated-statistics",
    "sketch",
    "sketch-dpsgd",
    "dpsgd",
    "langevin",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RatingsFlags:
    """How a file of ratings is found and read."""

    data_dir: Path | None = None
    """Where the data sets are; else the environment's DPMF_DATA."""
    split: str | None = None
    """An official split of the data set, such as u1: its training part is trained on or audited."""
    rating_range: tuple[float, float] | None = None
    """Lowest and highest rating of your own file: declared, never computed."""
    user_column: str | None = None
    """Column of the user ids in your own file, by name or position (1 is the first; digits are always a position)."""
    item_column: str | None = None
    """Column of the item ids, by name or position."""
    rating_column: str | None = None
    """Column of the ratings, by name or position."""
    delimiter: str | None = None
    """Between the columns of a text file."""
    no_header: bool = False
    """The first line holds ratings, no header. Columns are user, item, rating in this order, or as positions say."""
    duplicates: Literal["refuse", "first", "last", "mean"] = "refuse"
    """What to do with two ratings of one item by one user."""
    out_of_range: Literal["refuse", "drop", "clip"] = "refuse"
    """What to do with a rating outside the declared range."""
    slice: Literal["paper001"] | None = None
    """Paper 001's rule: users with 201 to 2,499 ratings, then items with more than 100."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MechanismFlags:
    """Which mechanism, and its settings; None is the mechanism's own default (experiments/DEFAULTS.md)."""

    mechanism: MechanismName = "gaussian-joint-noise"
    """gaussian is paper 001 as published (claimed, not proved), the next two are its sound variants, non-private
    protects nothing, local is paper 004 (proved, per user, against the server itself). objective and federated are
    paper 003 as published (claimed); sound are objective-public-users (one rating's value), objective-statistics (its
    presence), federated-user and federated-statistics (per user, against the recommender). sketch is paper 002 as
    published (no guarantee); sketch-dpsgd, dpsgd and langevin take secret samples of the ratings. Sound means proved
    for real-number noise, but for local, federated-user and federated-statistics, which are proved."""
    rank: int | None = None
    """Number of factors."""
    epsilon: float | None = None
    """Total epsilon: the noise is solved for it, on the safe side. local: of all reports of one user. federated, as
    published: of each iteration, which the paper states for all of them; the total is --steps times as much."""
    delta: float = 1e-5
    """Delta of the total, of Gaussian noise. local needs none; it is that of the shuffled price beside it."""
    center: str | None = None
    """What is subtracted from the ratings: a number, none; noisy-means: item means with noise, which are a part of the
    price (sound variants of paper 001, their default); item or global: unpriced means (gaussian, non-private);
    means: global, user and item means, unpriced (sketch's default)."""
    learning_rate: float | None = None
    """Step size of gradient descent; local: of the first round, a t-th of it in round t; federated-user: of the items,
    along the mean message; paper 002: eta, of the first step."""
    regularization: float | None = None
    """Weight of the squared norms of the factors; paper 003: of the items', mu."""
    steps: int | None = None
    """Paper 001: number of steps, fixed up front; 20 for joint-noise, 30 for public-items, 791 for the other two.
    federated, federated-user: of iterations, T; 100, with --dynamic 10000. sketch-dpsgd, dpsgd, langevin: of samples,
    100."""
    epsilon_step: float | None = None
    """Paper 001: noise of a step, as it writes it: sigma = sensitivity * sqrt(2 ln(1.25/delta_step)) / epsilon_step."""
    delta_step: float = 0.01
    """Paper 001: goes with --epsilon-step; a way to write sigma, not a price."""
    tau: float | None = None
    """Paper 001: largest change of one rating; by default the width of the rating range (its figures: 5 on
    MovieLens)."""
    center_share: float | None = None
    """Paper 001: share of the price (in rho) that --center noisy-means takes; 0.25 for joint-noise, 0.5 for
    public-items."""
    clip_norm: float = 1.0
    """Paper 001: bound on a factor row's norm where it enters a gradient. federated-user, federated-statistics: on the
    L1 norm of all that a user sends in an iteration. sketch-dpsgd, dpsgd, langevin: on one rating's gradient."""
    relation: Literal["rating-value", "rating-presence"] = "rating-value"
    """What is protected: one rating's value, or that it is there at all (sound variants of paper 001, with
    --residual-clip; sketch-dpsgd, dpsgd, langevin)."""
    residual_clip: float | None = None
    """Paper 001: bound on a rating's residual where it enters a gradient; the sound variants take a quarter of the
    range."""
    items: Path | None = None
    """Public item factors for gaussian-public-items: csv (item id, then one column a factor), npy or safetensors."""
    rounds: int | None = None
    """local: number of rounds, k."""
    schedule: Literal["every-round", "partition"] = "every-round"
    """local: everybody reports in each round, at epsilon/k (the paper's), or each of k groups in one, at epsilon."""
    projection: int | None = None
    """local: rows of the random projection, q (Private GD-DR); without it Private GD."""
    projection_law: Literal["gaussian", "sign"] = "gaussian"
    """local: of the projection's entries."""
    lift: Literal["pseudo-inverse", "transpose"] = "pseudo-inverse"
    """local: how a projected gradient comes back; the pseudo-inverse is the paper's, and shrinks by q/items."""
    fresh_projection: bool = False
    """local: another projection in each round; needs --lift transpose."""
    user_learning_rate: float | None = None
    """local, federated-user: of the users' own steps, which cost nothing; local: None is that of the items, as in the
    paper."""
    entry_clip: float = 1.0
    """local: entries of a user's gradient are clipped to plus or minus this, and reports scaled by it."""
    noise: Literal["l2-laplace", "laplace", "gaussian"] | None = None
    """objective, objective-public-users: law of the perturbation; l2-laplace is theorem 1's (the default), laplace
    lemma 1's; gaussian, with --delta, for public-users alone."""
    prior_count: int | None = None
    """Paper 003: M, a public number: items minimise the sum of squares plus M times mu times their squared norm. By
    default the number of ratings (objective, where who rated what is public), 1 (federated: as in equation (9)), or by
    the size of the noise (the sound ones)."""
    users: Path | None = None
    """Public user factors for objective-public-users and objective-statistics: csv (user id, then one column a factor),
    npy or safetensors; rows longer than 1 are scaled to 1. Without it random rows."""
    user_regularization: float | None = None
    """objective, federated: weight of the users' squared norms, lambda."""
    user_passes: int | None = None
    """objective: passes of the non-private factorisation that the user factors come from; 100."""
    sgd_passes: int | None = None
    """objective: item factors by so many passes of per-rating updates, as in the paper's figures; without it the exact
    minimiser."""
    rating_bound: float | None = None
    """objective-statistics: ratings are clipped to so much on either side of the centre; half the range."""
    matrix_share: float = 0.5
    """objective-statistics: share of the price (in rho) that the noise on the sum of u·u' takes."""
    dynamic: bool = False
    """federated, federated-user: users come and go, and at most --participants take part in an iteration."""
    join: float | None = None
    """With --dynamic: probability that an absent user comes back before an iteration; 0.005."""
    leave: float | None = None
    """With --dynamic: that a present one goes; 0.01."""
    participants: int | None = None
    """With --dynamic: so many of those present take part at most; a tenth of the users, 1000 at most."""
    rounding_step: float | None = None
    """federated-user, federated-statistics: messages are rounded towards zero to multiples of this, and its noise is
    drawn on the same grid."""
    honest_shares: int | None = None
    """federated-user, federated-statistics: so many users other than the protected one surely add their share of the
    noise, and keep it to themselves; by default all who take part, so that nobody may drop out or collude."""
    change: Literal["replace", "remove"] = "replace"
    """federated-user, federated-statistics: what is hidden of a user: which data they are, or that there are any."""
    sampling_rate: float | None = None
    """sketch-dpsgd, dpsgd, langevin: probability with which each rating is in a step's sample, by itself, q."""
    temperature: float | None = None
    """langevin, in place of --epsilon: T of the noise sqrt(2 eta T) of a step; 1 is that of the posterior. Without
    --decay langevin is dpsgd with noise multiplier z, T = eta (z clip_norm/sampling_rate)^2/2: one algorithm, two
    names."""
    epochs: int | None = None
    """sketch: passes over the ratings, T."""
    decay: float | None = None
    """sketch, sketch-dpsgd, dpsgd, langevin: b; step t of T has learning rate eta/(1 + b t/T)."""
    threshold: float | None = None
    """sketch: what paper 002 calls epsilon, and no privacy parameter: ratings with a larger loss are not learnt
    from."""
    convention: Literal["4.3", "3.2"] = "4.3"
    """sketch, with --threshold: the loss is the squared error (4.3), or half of it (3.2)."""
    depth: int = 4
    """sketch, sketch-dpsgd: rows of the table, k; 1 is feature hashing."""
    gain: float | None = None
    """sketch, sketch-dpsgd: how many times smaller the table is than all vectors, gamma."""
    query: Literal["mean", "median"] = "mean"
    """sketch, sketch-dpsgd: how a vector is read from its rows; sketch is slow with median."""
