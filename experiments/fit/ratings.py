"""The ratings of a command, as its flags say: read, checked against the guarantee, and split."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from dpmf_jax.errors import DataError, PrivacyError, UsageError
from experiments.fit import implicit
from experiments.fit.mechanism_file import declared


def read(command: Any) -> tuple[Any, Any]:
    """(train, test) as the flags of `dpmf fit` say; test is None where nothing is held out.

    Raises:
      UsageError: no data set is named, or a share held out that is none. PrivacyError: flags under
        which the guarantee of the mechanism would not hold. DataError: a file that cannot be read.
    """
    from dpmf_jax.data import datasets, splits
    from dpmf_jax.data.catalogue import DATASETS

    check_named(command)
    catalogue = {"users": command.catalogue_users, "items": command.catalogue_items}
    spec = declared(command.mechanism)
    unit, generated = spec.unit, datasets.SYNTHETIC.fullmatch(command.data)
    per_user, own = unit == "user", unit in ("user", "rating presence")
    presence = own or getattr(command, "relation", None) == "rating-presence"
    what = f"the guarantee of {command.mechanism}" if own else "the relation rating-presence"
    ridge = "take --mechanism ridge, for which who rated what is public; or "
    seeded = ("" if spec.implicit else ridge) + "give --seed for an experiment"
    less = seeded if own else "use --relation rating-value"
    undeclared = presence and None in catalogue.values() and not generated
    published = command.data in DATASETS
    if undeclared and not published and not (own and command.seed is not None):
        raise PrivacyError(
            f"{what} needs a declared catalogue",
            where="users and items read off the ratings show who has a rating at all",
            fix=f"give --catalogue-users FILE and --catalogue-items FILE, one id a line; or {less}",
        )
    if presence and (command.slice or (command.duplicates != "refuse" and not per_user)):
        flag = "--slice" if command.slice else "--duplicates"
        raise PrivacyError(
            f"{what} does not go with {flag}",
            where="one row more may then change or move other ratings",
            fix=f"leave out {flag}" + ("" if own else ", or use --relation rating-value"),
        )
    if not 0 <= command.test_fraction < 1:
        raise UsageError(
            "--test-fraction must be at least 0 and below 1",
            where=f"--test-fraction {command.test_fraction}",
            fix="--test-fraction 0.1, or 0 to hold out nothing",
        )
    loaded = datasets.load(
        command.data,
        implicit=spec.implicit,
        split=command.split,
        slice=command.slice,
        **command.reading(),
        weight_column=getattr(command, "weight_column", None),
        shared=command.distributed,
        **{name: _ids(path) for name, path in catalogue.items() if path is not None},
    )
    if undeclared and published:
        loaded = _noted(
            loaded,
            f"the catalogue is the one that {command.data} was published with; ratings that are not"
            " public need one that is declared",
        )
    if isinstance(loaded, tuple):
        return loaded
    if spec.implicit:
        share = implicit.held_out_share(command, loaded.num_users)
        split = splits.whole_users(loaded, fraction=share, seed=command.split_seed)
        return split if share else (loaded, None)
    if command.test_fraction == 0:
        return loaded, None
    # By the pair alone, where no process may look at the other ratings.
    split = splits.by_pair if presence or command.distributed else splits.random
    return split(loaded, fraction=command.test_fraction, seed=command.split_seed)


def _noted(loaded: Any, note: str) -> Any:
    """The ratings, or both parts of a split, with one more note."""
    if isinstance(loaded, tuple):
        return tuple(_noted(part, note) for part in loaded)
    return dataclasses.replace(loaded, notes=(*loaded.notes, note))


def check_named(command: Any) -> None:
    """Raises: UsageError for a command without a data set."""
    if command.data is None:
        raise UsageError(
            "no data set is named",
            fix="dpmf fit DATA, for example dpmf fit synthetic; or --resume FOLDER",
        )


def _ids(path: Path) -> list[str]:
    """The ids in a file, one a line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"the catalogue cannot be read: {error}",
            where=str(path),
            fix="give a text file with one id a line",
        ) from None
    return [line.strip() for line in lines if line.strip()]
