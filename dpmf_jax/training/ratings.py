"""The ratings that a mechanism trains on, and those held out: read, checked against its guarantee,
split. `dpmf fit`, `dpmf audit` and `dpmf_jax.fit` all come here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dpmf_jax.data import given, sources, splits
from dpmf_jax.data.catalogue import DATASETS
from dpmf_jax.data.columns import ITEM_NAMES, USER_NAMES, plain
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import DataError, PrivacyError, UsageError
from dpmf_jax.mechanisms.spec import AnyFlags, Spec

FRACTION = 0.1  # of the ratings, held out where nobody says another
USERS = 0.1  # of the users, likewise, where a mechanism reads who has seen what
Ids = Path | str | Iterable[Any] | None  # a file with one id a line, or the ids


def read(
    spec: Spec,
    flags: AnyFlags,
    data: Any,
    *,
    catalogue_users: Ids = None,
    catalogue_items: Ids = None,
    split: str | None = None,
    slice: str | None = None,
    test_fraction: float = FRACTION,
    split_seed: int = 0,
    holdout_users: float | None = None,
    seeded: bool = False,
    shared: bool = False,
    **reading: Any,
) -> tuple[Ratings, Ratings | None]:
    """(train, test) for a mechanism; test is None where nothing is held out.

    Args:
      spec, flags: the mechanism and its settings.
      data: in any form that `given.read` knows.
      catalogue_users, catalogue_items: every possible id, declared; None takes the ids of the
        ratings, which a guarantee about who has rated at all does not allow. Checked ratings, a
        sparse matrix, generated and published ratings have a catalogue.
      split, slice, shared, reading: as in `given.read`.
      test_fraction: share of the ratings held out.
      split_seed: of the random split.
      holdout_users: of a mechanism that reads who has seen what, the share or number of users held
        out whole; `USERS` where it is None.
      seeded: whether it is an experiment, which may leave the catalogue undeclared.

    Raises:
      UsageError: a share held out that is none. PrivacyError: what the guarantee of the mechanism
        does not hold under. DataError: ratings that cannot be read.
    """
    catalogue = {"users": catalogue_users, "items": catalogue_items}
    named = isinstance(data, str)
    published = named and data in DATASETS
    unit = spec.unit
    per_user, own = unit == "user", unit in ("user", "rating presence")
    presence = own or getattr(flags, "relation", None) == "rating-presence"
    what = f"the guarantee of {spec.name}" if own else "the relation rating-presence"
    ridge = "take --mechanism ridge, for which who rated what is public; or "
    seed = ("" if spec.implicit else ridge) + "give --seed for an experiment"
    less = seed if own else "use --relation rating-value"
    incomplete = any(ids is None for ids in catalogue.values())
    undeclared = presence and incomplete and not given.has_catalogue(data)
    if undeclared and not published and not (own and seeded):
        if isinstance(data, str | Path):  # a name that is mistyped has no catalogue either
            sources.check_exists(Path(data))
        raise PrivacyError(
            f"{what} needs a declared catalogue",
            where="users and items read off the ratings show who has a rating at all",
            fix=f"give --catalogue-users FILE and --catalogue-items FILE, one id a line; or {less}",
        )
    if presence and (slice or (reading.get("duplicates", "refuse") != "refuse" and not per_user)):
        flag = "--slice" if slice else "--duplicates"
        raise PrivacyError(
            f"{what} does not go with {flag}",
            where="one row more may then change or move other ratings",
            fix=f"leave out {flag}" + ("" if own else ", or use --relation rating-value"),
        )
    if not 0 <= test_fraction < 1:
        raise UsageError(
            "--test-fraction must be at least 0 and below 1",
            where=f"--test-fraction {test_fraction}",
            fix="--test-fraction 0.1, or 0 to hold out nothing",
        )
    loaded = given.read(
        data,
        implicit=spec.implicit,
        split=split,
        slice=slice,
        shared=shared,
        **reading,
        **{name: _ids(declared) for name, declared in catalogue.items() if declared is not None},
    )
    if undeclared and published:
        loaded = _noted(
            loaded,
            f"the catalogue is the one that {data} was published with; ratings that are not"
            " public need one that is declared",
        )
    if isinstance(loaded, tuple):
        return loaded
    if spec.implicit:
        share = share_of_users(holdout_users, loaded.num_users)
        parts = splits.whole_users(loaded, fraction=share, seed=split_seed)
        return parts if share else (loaded, None)
    if test_fraction == 0:
        return loaded, None
    # By the pair alone, where no process may look at the other ratings.
    cut = splits.by_pair if presence or shared else splits.random
    return cut(loaded, fraction=test_fraction, seed=split_seed)


def share_of_users(asked: float | None, num_users: int) -> float:
    """The share of all users of the catalogue that is held out.

    Raises: UsageError for a number below 0, or of all users and more.
    """
    wanted = USERS if asked is None else asked
    share = wanted if wanted < 1 else wanted / num_users
    if not 0 <= share < 1:
        raise UsageError(
            f"--holdout-users {wanted:g} of {num_users:,} users leaves none",
            fix="--holdout-users 0.1, a number of users, or 0 to hold out nobody",
        )
    return share


def _noted(loaded: Any, note: str) -> Any:
    """The ratings, or both parts of a split, with one more note."""
    if isinstance(loaded, tuple):
        return tuple(_noted(part, note) for part in loaded)
    return dataclasses.replace(loaded, notes=(*loaded.notes, note))


def _ids(declared: Ids) -> Any:
    """The ids as they are given, or those in a file, one a line."""
    if not isinstance(declared, Path | str):
        to_numpy = getattr(declared, "to_numpy", None)  # of a column of a DataFrame
        return declared if to_numpy is None else to_numpy()
    try:
        lines = Path(declared).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"the catalogue cannot be read: {error}",
            where=str(declared),
            fix="give a text file with one id a line",
        ) from None
    ids = [line.strip() for line in lines if line.strip()]
    if not ids:
        raise DataError(
            "the catalogue is empty", where=str(declared), fix="give every possible id, one a line"
        )
    if plain(ids[0]) in (*USER_NAMES, *ITEM_NAMES):
        raise DataError(
            f"the catalogue begins with {ids[0]!r}, the heading of a column and not an id",
            where=f"{declared}, line 1",
            fix="take that line out: every line is one id",
        )
    return ids
