"""`dpmf fit` of who has seen what: which users are held out, and how well the model finds items."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpmf_jax.errors import UsageError
from dpmf_jax.mechanisms import table
from dpmf_jax.training.ratings import FRACTION
from experiments.cli import console
from experiments.fit.flags import DEFAULT, IMPLICIT, with_flags_of

TEXT = {
    "noisy_popularity": "the popularity that it releases",
    "popularity": "popularity without privacy",
    "implicit_als": "the same model without privacy",
}
DEFINITIONS = {
    "recall_at_20": (
        "of users held out whole, of whose items 80% are shown to the model: hidden items among the"
        " 20 best-scored ones that were not shown, over the smaller of 20 and the number hidden;"
        " mean over users with hidden items"
    ),
    "ndcg_at_20": "of the same lists: DCG over the best possible DCG at 20",
    "users_evaluated": "users held out who have hidden items",
    "controls": (
        "noisy popularity is released with the model, so private as it is; popularity and"
        " alternating least squares without noise are not private"
    ),
}


def taken(command: Any, kind: type) -> Any:
    """The command, for what users have seen where its file has no ratings and nobody chose else.

    kind: of commands, without the flags of a mechanism.

    Raises: UsageError for a flag that such a fit does not know.
    """
    from dpmf_jax.data import formats

    if command.NAMED or command.mechanism != DEFAULT:
        return command
    if not formats.has_no_ratings(Path(command.data), command.delimiter):
        return command
    for name in ("rating_column", "item_features"):
        if getattr(command, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{command.data} has two columns, so it says who has seen what, and {flag} means"
                " nothing to it",
                where=flag,
                fix=f"leave out {flag}, or name the right --delimiter",
            )
    console.say(f"{command.data} has no ratings: it is taken for who has seen what (--implicit)")
    other = with_flags_of(kind, IMPLICIT)
    names = [field.name for field in dataclasses.fields(other) if field.name != "mechanism"]
    return other(**{name: getattr(command, name) for name in names} | {"implicit": True})


def check(command: Any) -> None:
    """Raises: UsageError for flags that do not go together with --implicit, or its absence."""
    from dpmf_jax.data import formats

    implicit = table()[command.mechanism].implicit
    if command.implicit and not implicit:
        raise UsageError(
            f"--mechanism {command.mechanism} learns from ratings, which --implicit leaves unread",
            where="--implicit",
            fix=f"--mechanism {IMPLICIT}, or leave out --mechanism",
        )
    if not implicit:
        if command.holdout_users is not None:
            raise UsageError(
                f"--mechanism {command.mechanism} is tried on ratings held out, not on users",
                where="--holdout-users",
                fix="--test-fraction 0.1, or --implicit",
            )
        if formats.has_no_ratings(Path(command.data), command.delimiter):
            raise UsageError(
                f"{command.data} has two columns and no ratings: who has seen what; --mechanism"
                f" {command.mechanism} learns from ratings",
                where=command.data,
                fix=f"fit it with --implicit and --mechanism {IMPLICIT}; or give a third column,"
                " the ratings, or the right --delimiter",
            )
        return
    for flag, given in (
        ("--test-fraction", command.test_fraction != FRACTION),
        ("--split", command.split is not None),
    ):
        if given:
            raise UsageError(
                f"{flag} holds out ratings, and a model of what users have seen is tried on users"
                " held out whole",
                where=flag,
                fix="--holdout-users 0.1, or 0 to hold out nobody",
            )
    if command.distributed and command.holdout_users != 0:
        raise UsageError(
            "no process has all users that are held out",
            where="--distributed",
            fix="--holdout-users 0",
        )


def utility(metrics: Mapping[str, Any]) -> str:
    """How useful the model is: whether it finds more than its controls."""
    ours, controls = metrics["recall_at_20"], metrics["controls"]
    if ours is None:
        return "nobody is held out, so nothing is known: --holdout-users 0.1"
    if not controls:
        return "no control was asked for"
    sentences = []
    for name, values in controls.items():
        theirs = values["recall_at_20"]
        word = "more than" if ours > theirs else "as much as" if ours == theirs else "less than"
        sentences.append(f"{word} {TEXT[name]} ({theirs:.4f})")
    plain = controls.get("noisy_popularity")
    useless = plain is not None and ours < plain["recall_at_20"]
    start = "NOT USEFUL: finds" if useless else "finds"
    return f"{start} ({ours:.4f} in Recall@20) {', '.join(sentences)}"


def render(result: Mapping[str, Any]) -> Any:
    """The table of the model and its controls, and what its numbers are."""
    from rich.table import Table

    table = Table(title=f"{result['mechanism']} on {result['data']}")
    for heading in ("", "private", "Recall@20", "NDCG@20"):
        table.add_column(heading, justify="left" if not heading else "right")

    def numbers(values: Mapping[str, Any]) -> Iterator[str]:
        for name in ("recall_at_20", "ndcg_at_20"):
            yield "-" if values[name] is None else f"{values[name]:.4f}"

    table.add_row("this model", "yes, proved", *numbers(result))
    for name, values in result["controls"].items():
        table.add_row(
            name.replace("_", " "), "yes" if values["private"] else "no", *numbers(values)
        )
    return table
