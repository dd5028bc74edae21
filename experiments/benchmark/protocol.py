"""The benchmark's protocol: data, splits, prices, repeats, and who takes part.

docs/benchmark/protocol.md says it for readers; a test holds that page to what stands here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

from dpmf_jax.data.catalogue import DATASETS

DELTA = 1e-5
SUBMISSIONS = Path("docs") / "benchmark" / "submissions"  # results of others
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 20.0)
LIST, LONG_LIST = 10, 20  # items of a list
# From whom a promise hides, by how its trust model begins.
TRUST = {
    "trusted curator": "curator",
    "a curator": "curator",
    "none": "curator",
    "untrusted recommender": "untrusted server",
    "local": "local",
}
GROUPS = 5  # of users, by their number of training ratings

Split = Literal["ratings", "last", "users"]
SPLITS: dict[Split, str] = {
    "ratings": "a tenth of the ratings at random is held out",
    "last": "the last rating of each user by time is held out",
    "users": (
        "a tenth of the users is held out whole; of each, four fifths of the ratings are shown to"
        " the finished model, and the others held out"
    ),
}


class Contender(NamedTuple):
    """Who takes part.

    Attributes:
      label: in tables; no other has it.
      kind: "mechanism": of the table of mechanisms. "control": ours, without privacy. "peer": of
        another library, without privacy.
      name: of the mechanism, the control or the peer.
      flags: of a mechanism, as (field, value); all others have their defaults.
      tried: settings of which `dpmf_jax.tune` chooses, at the price in all: (field, values).
      rounds: of how many rounds the mechanism's ε is one; the benchmark's is for all.
    """

    label: str
    kind: Literal["mechanism", "control", "peer"]
    name: str
    flags: tuple[tuple[str, Any], ...] = ()
    tried: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    rounds: int = 1

    @property
    def priced(self) -> bool:
        """Whether it is asked for an ε."""
        return self.kind == "mechanism" and self.name not in WITHOUT_PRICE


# A name of the table of mechanisms whose ε is none, or that has none.
WITHOUT_PRICE = ("non-private", "sketch")
ROUNDS = 20  # of `federated`, whose ε is that of a round

# Of what a mechanism of the table is called and told beyond its name; several where it has several
# promises, or is also tuned.
VARIANTS: dict[str, tuple[Contender, ...]] = {
    "als": (
        Contender("als", "mechanism", "als"),
        Contender("als, replaced", "mechanism", "als", (("change", "replace"),)),
        Contender("als, tuned", "mechanism", "als", tried=(("rank", (0, 3, 8)),)),
    ),
    "gaussian-joint-noise": (
        Contender("gaussian-joint-noise", "mechanism", "gaussian-joint-noise"),
        Contender(
            "gaussian-joint-noise, presence",
            "mechanism",
            "gaussian-joint-noise",
            (("relation", "rating-presence"),),
        ),
        Contender(
            "gaussian-joint-noise, tuned",
            "mechanism",
            "gaussian-joint-noise",
            tried=(("rank", (2, 8, 20)),),
        ),
    ),
    "federated": (
        Contender("federated", "mechanism", "federated", (("steps", ROUNDS),), rounds=ROUNDS),
    ),
}
CONTROLS = (
    *("popularity", "global_mean", "item_means", "biased_mf"),
    *("nothing_released", "als_without_noise", "implicit_als"),
)
# Other libraries' names, and how a model of each is called.
PEERS = ("implicit ALS", "implicit BPR", "Surprise SVD", "LensKit biased MF")


def contenders() -> tuple[Contender, ...]:
    """All of them: every mechanism of the table, controls, and peers, installed or not."""
    from dpmf_jax.mechanisms import table

    found: list[Contender] = []
    for name in table():
        found += VARIANTS.get(name, (Contender(name, "mechanism", name),))
    found += [Contender(name.replace("_", " "), "control", name) for name in CONTROLS]
    return (*found, *(Contender(name, "peer", name) for name in PEERS))


class Part(NamedTuple):
    """Data sets that a scale has with these splits, prices and repeats.

    tuned: whether contenders that choose their settings take part.
    """

    data: tuple[str, ...]
    splits: tuple[Split, ...]
    epsilons: tuple[float, ...]
    repeats: int
    tuned: bool


GENERATED = "synthetic-300x200x6000"
REAL = ("ml-100k", "ml-1m", "anime-5000", "netflix-52", "libimseti-9k")
WITH_TIMES = tuple(name for name in REAL if (layout := DATASETS[name].layout) and layout.time)

SCALES: dict[str, tuple[Part, ...]] = {
    "small": (
        Part((GENERATED,), ("ratings",), (1.0, 8.0), 2, False),
        Part((GENERATED,), ("users",), (1.0, 8.0), 1, False),
        Part(("ml-100k",), ("ratings",), (1.0, 8.0), 1, False),
    ),
    "full": (
        Part((GENERATED, *REAL), ("ratings",), EPSILONS, 5, True),
        Part(WITH_TIMES, ("last",), EPSILONS, 5, False),
        Part((GENERATED, *REAL), ("users",), EPSILONS, 5, False),
    ),
}


class Setting(NamedTuple):
    """What a row of the benchmark is about. epsilon: None of what is asked for none."""

    data: str
    split: Split
    contender: Contender
    epsilon: float | None


def settings(scale: str) -> list[tuple[Setting, int]]:
    """(setting, repeats) of a scale: a data set and split after the other."""
    found = []
    for part in SCALES[scale]:
        for data in part.data:
            for split in part.splits:
                for contender in contenders():
                    if takes_part(contender, split) and (part.tuned or not contender.tried):
                        epsilons = part.epsilons if contender.priced else (None,)
                        found += [
                            (Setting(data, split, contender, one), part.repeats) for one in epsilons
                        ]
    return found


def takes_part(contender: Contender, split: Split) -> bool:
    """Whether it can: users who are held out whole need a model that serves new ones, and are all
    that is measured of who has seen what.
    """
    from dpmf_jax.mechanisms import table

    serves = {"popularity", "global_mean", "item_means", "implicit_als"}
    if contender.kind != "mechanism":
        return (split == "users") <= (contender.name in serves) and (
            contender.name != "implicit_als" or split == "users"
        )
    spec = table()[contender.name]
    if split == "users":
        return spec.fold_in is not None and not contender.tried
    return not spec.implicit
