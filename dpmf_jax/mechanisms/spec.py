"""How a mechanism is declared: its `Spec` says all that commands, tables and tests need to know.

A family of mechanisms is a package here with a module `spec`, whose `SPECS` are found by
`dpmf_jax.mechanisms.table`. Nothing else lists them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from accounting.loss import Unit
from dpmf_jax.errors import UsageError

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings
    from dpmf_jax.protocol import Mechanism, Phase, Release

Comparison = tuple["tuple[Phase, ...]", bool]  # phases, and whether a guarantee covers them
Settings = dict[str, Any]  # what model.json keeps: public, and all that the phases are made of
Access = Literal["sums", "in place", "by item", "in order"]

NOISY_MEANS = "noisy-means"  # of --center
SOUND_EPSILON = 3.0  # of the variants that are ours, where the flags say none


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnyFlags:
    """What a mechanism can be told.

    None stands for the mechanism's own default, which `Spec.defaults` says in words.
    """

    HEADING: ClassVar = "the mechanism"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(AnyFlags):
    """What every mechanism of the table can be told."""

    epsilon: float | None = None
    """Total epsilon. The noise is solved for it, rounded up."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FactorFlags(Flags):
    """What every mechanism of user and item factors can be told."""

    rank: int | None = None
    """Number of factors."""
    center: str | None = None
    """What is subtracted from the ratings: a public number in their unit, or none."""
    regularization: float | None = None
    """Weight of the squared norms of the factors."""


class Trial(NamedTuple):
    """Settings at which `dpmf audit --all` puts a mechanism on trial.

    The flags may say "middle" (of the declared range), "highest" (the range's highest value, or its
    width) and "quarter" (of the number of items).

    Attributes:
      label: of the trial in reports.
      why: the settings in words.
      flags: those of every run.
      real: flags to add on real ratings.
      small: flags to add where the trial is to be short.
      own: whether it always runs on generated ratings.
      short: steps, by family of audits, to which a run on real ratings is held.
      less: arguments, by family of audits, for a run on real ratings.
    """

    label: str
    why: str
    flags: Mapping[str, Any] = {}
    real: Mapping[str, Any] = {}
    small: Mapping[str, Any] = {}
    own: bool = False
    short: Mapping[str, int] = {}
    less: Mapping[str, Mapping[str, Any]] = {}


FEW_STEPS: Mapping[str, Any] = {"steps": 4}  # of a short trial


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """One mechanism, as it is declared.

    Attributes:
      name: of `--mechanism`.
      paper: "001" to "004", whose mechanism or claim it is, or whose problem it mends; else "ours".
      flags: a dataclass of its settings; the string below a field is its help.
      defaults: what stands for a flag that is not given and whose field is None, by name of the
        field: a number, or words. For help and tests; `settings` decides.
      settings: (name, flags, ratings, public) -> the public settings of a run. Reads the sizes, ids
        and declared range of the ratings, and no rating. public: float32[users or items, rank], or
        None. Raises UsageError for flags that contradict each other, PrivacyError for what a
        guarantee does not allow, ValueError for a number out of range.
      phases: (settings, public) -> ((mechanism, number of steps), ...), made of the settings alone.
      control: (mechanism of the last phase) -> the same program without noise, which attacks are
        measured against. It protects nothing.
      access: what a step needs of the ratings. "sums": sums over the ratings of a user or of an
        item, so that devices, processes and streams can share them. "in place": more than sums, so
        nothing is streamed. "by item": an item's ratings one after the other, in one process. "in
        order": all ratings in one order, or samples: one process, and one device unless it is told
        otherwise.
      unit: whose change the guarantee hides; None where `--relation` chooses, or nothing is
        promised. A test holds it to the guarantee.
      unsafe: (what, where, fix) of the refusal, where a release promises nothing and must be asked
        for twice.
      public: which side's factors a file may give (`--items`, `--users`), or features of the items
        beside factors that are learned (`--item-features`).
      groups: (flags, ratings) -> int[users], the group of each user, or None. Declared, and kept by
        no model: where there is one, `phases` takes it as a third argument. Reads ids alone.
      weighted: whether ratings may have weights. Of other mechanisms these count for nothing.
      implicit: whether it reads only who has rated what, and scores in place of predicting ratings.
      num_steps: (settings, steps that the guarantee prices) -> steps of the training phase.
      notes: (settings, release) -> sentences to print with a result.
      second_price: (settings, number of users, δ) -> a price under another trust model, printed
        beside the guarantee.
      trials: the claims that `dpmf audit --all` tries to break; a mechanism that releases something
        has one at least.
      traffic: (settings, number of users, number of items) -> bytes sent in an iteration.
      fold_in: (settings, release, ratings of new users on the model's items) -> their user factors,
        float32[users, rank of the item factors]. None where a release cannot serve new users.
      comparisons: (settings, public) -> other runs on the same ratings, by name, to measure beside
        a fit. With a group it is the third argument, as that of `phases`.
    """

    name: str
    paper: str
    flags: type[AnyFlags]
    settings: Callable[[str, Any, Ratings, Any], Settings]
    phases: Callable[..., tuple[Phase, ...]]
    control: Callable[[Mechanism], Mechanism]
    access: Access
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    unit: Unit | None = None
    unsafe: tuple[str, str, str] | None = None
    public: Literal["items", "users", "item_features"] | None = None
    groups: Callable[[Any, Ratings], Any] | None = None
    weighted: bool = False
    implicit: bool = False
    trials: tuple[Trial, ...] = ()
    num_steps: Callable[[Mapping[str, Any], int], int] = lambda settings, priced: priced
    notes: Callable[[Mapping[str, Any], Release], list[str]] = lambda settings, release: []
    second_price: Callable[[Mapping[str, Any], int, float], dict[str, Any] | None] = (
        lambda *settings: None
    )
    traffic: Callable[[Mapping[str, Any], int, int], dict[str, Any] | None] = lambda *settings: None
    fold_in: Callable[[Mapping[str, Any], Release, Ratings], Any] | None = None
    comparisons: Callable[..., Mapping[str, Comparison]] = lambda *settings: {}

    def __post_init__(self):
        foreign = {field.name for field in dataclasses.fields(self.flags)} & {
            "mechanism",
            "data",
            "seed",
            "out",
        }
        if foreign:
            raise ValueError(f"{self.name}: {', '.join(sorted(foreign))} belong to the commands")


def without_noise(mechanism: Mechanism) -> Mechanism:
    """The control of a mechanism whose noise has a scale, or that has none: `silent.silent`."""
    from dpmf_jax.mechanisms.silent import silent

    return silent(mechanism)


def given_or_default(flags: Flags, defaults: Any, name: str) -> Any:
    """What the flags say, else the default, else None."""
    given = getattr(flags, name)
    return getattr(defaults, name, None) if given is None else given


def check_steps(steps: int, usual: int, flag: str = "--steps") -> int:
    """Raises: UsageError for fewer steps than one."""
    if steps < 1:
        raise UsageError(f"{flag} must be at least 1; got {steps}", fix=f"{flag} {usual}")
    return steps


def config_values(config: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are fields of a mechanism's Config, a dataclass; the range as a pair."""
    names = {field.name for field in dataclasses.fields(config)}
    values = {name: value for name, value in settings.items() if name in names}
    if "rating_range" in values:
        values["rating_range"] = tuple(values["rating_range"])
    return values


def constant(text: str) -> float:
    """`--center` as a number.

    Raises: UsageError.
    """
    try:
        return 0.0 if text == "none" else float(text)
    except ValueError:
        raise UsageError(
            f"--center {text} is not {NOISY_MEANS}, item, global, none or a number",
            fix="--center 3.5",
        ) from None


def public_center(text: str, mechanism: str) -> float:
    """`--center` of a mechanism whose price is that of a public centre.

    Raises: UsageError.
    """
    if text in ("item", "global", NOISY_MEANS):
        raise UsageError(
            f"--center {text} is not for --mechanism {mechanism}: its price is that of a centre"
            " which is public",
            fix="--center with a number that is public, such as the middle of the range",
        )
    return constant(text)
