"""The result of `dpmf fit` for people: what its numbers mean, how useful the model is, a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from experiments.fit import implicit

CLIPPED = (
    "train of this model: predictions not clipped, as in the paper; all others: clipped to the"
    " declared range"
)
DEFINITIONS = {
    "rmse_train": (
        "root mean squared error on training ratings, predictions not clipped, as in the paper's"
        " figures"
    ),
    "rmse_test": (
        "on held-out ratings, predictions clipped to the declared rating range; null where none is"
        " held out"
    ),
    "controls": (
        "not private: predicting the global mean, each item's mean, and a biased matrix"
        " factorisation, clipped; popularity, the number of an item's ratings, only ranks, and is"
        " free where who rated what is public; for als and means also what everybody's own ratings"
        " give where nothing is released, means alone for the same price, and the same program"
        " without noise"
    ),
    "ndcg_at_10": (
        "of the items that a user has not rated in training, ranked by score, unclipped; relevant"
        " are all that are held out; mean over users with any, of many users and items over a"
        " sample, alike for the controls"
    ),
    "ranks_alike": "whether the model has one order of items for all users",
    "presence_is_public": (
        "whether the guarantee has who rated what public; popularity then costs no privacy"
    ),
}


def presence_is_public(guarantee: Any) -> bool:
    """Whether the guarantee leaves public who rated what, so that popularity costs nothing."""
    return guarantee.status != "none" and guarantee.unit == "rating value"


def utility(metrics: Mapping[str, Any], *, presence_is_public: bool = False) -> str:
    """How useful the model is: whether it beats its controls, and how it ranks.

    Errors are those on held-out ratings, where there are any.
    """
    if metrics.get("diverged"):
        return (
            "DIVERGED: on its own training ratings the model is worse than any constant of the"
            " declared range"
        )
    if not metrics["controls"]:
        return "no control was asked for"
    return "; ".join((*_errors(metrics), *_ranking(metrics, presence_is_public)))


def _errors(metrics: Mapping[str, Any]) -> list[str]:
    """A sentence on the model's error beside those of the controls that have one."""
    side = "rmse_test" if metrics["rmse_test"] is not None else "rmse_train"
    ours, where = metrics[side], "held-out" if side == "rmse_test" else "training"
    errors = {
        name: values[side]
        for name, values in metrics["controls"].items()
        if values[side] is not None
    }
    if not errors:
        return []
    beaten = [name for name, error in errors.items() if error > ours]
    simple = [
        name
        for name in ("global_mean", "item_means", "nothing_released", "means_same_price")
        if name in errors
    ]
    text = {
        "global_mean": "the global mean",
        "item_means": "item means",
        "biased_mf": "a non-private factorisation",
        "nothing_released": "what needs no release",
        "means_same_price": "means alone for the same price",
        "als_without_noise": "the same without noise",
    }
    if all(name in beaten for name in simple):
        *others, last = (text[name] for name in beaten)
        names = f"{', '.join(others)} and {last}" if others else last
        little = (
            "; that says little: hold some out (--test-fraction 0.1)" if where == "training" else ""
        )
        return [f"beats {names} on {where} ratings{little}"]
    lost = " or ".join(text[name] for name in simple if name not in beaten)
    return [
        f"NOT USEFUL: does not beat predicting {lost} on {where} ratings; such a model is worse"
        " than no factorisation"
    ]


def _ranking(metrics: Mapping[str, Any], presence_is_public: bool) -> list[str]:
    """Sentences on the model's ranking."""
    sentences = []
    ours, popular = (
        metrics.get("ndcg_at_10"),
        metrics["controls"].get("popularity", {}).get("ndcg_at_10"),
    )
    if ours is not None and popular is not None:
        free = (
            ", which is free here: who rated what is public"
            if presence_is_public
            else ", which is not private"
        )
        worse, figures = ours <= popular, f"({ours:.4f} against {popular:.4f} in NDCG@10)"
        sentences.append(
            f"ranks {'no better' if worse else 'better'} than popularity"
            f" {figures}{free if worse else ''}"
        )
    if metrics.get("ranks_alike"):
        sentences.append(
            "ranks items alike for all users: it recommends everyone the same, but for what they"
            " have rated"
        )
    return sentences


def _traffic(traffic: Mapping[str, Any]) -> str:
    """The bytes that a user sends and receives: a line for each kind of pass."""
    kinds = traffic.get("per_pass", {"": traffic["per_iteration"]})
    found = []
    for kind, sent in kinds.items():
        times = sent.get("passes", 1)
        one = f"a pass for {kind}" if kind else "an iteration"
        routes = ", ".join(f"{route} {count:,}" for route, count in sent.items() if " to " in route)
        found.append(
            f"bytes in {one}{f' (of {times})' if times > 1 else ''}, of a user who lists"
            f" {traffic['items_listed_by_a_user']} items: {routes}"
        )
    return "\n".join(found)


def render(result: Mapping[str, Any]) -> Any:
    """The result as rich prints it: a table of errors, the guarantee, the notes."""
    from rich.console import Group

    ranks = "recall_at_20" in result
    seconds = result["seconds_per_step"]
    pace = "" if seconds is None else f", {1e3 * seconds:.2f} ms a step"
    lines = [
        "for the curator: the numbers above are computed from the ratings and are not priced",
        *([] if ranks else [CLIPPED]),
        "",
        result["guarantee"]["statement"],
        "",
        *([f"beside it: {result['shuffled']['statement']}", ""] if result["shuffled"] else []),
        *([_traffic(result["bytes"]), ""] if result["bytes"] else []),
        f"utility: {result['utility']}",
        (
            f"{result['steps']} step{'s' * (result['steps'] != 1)} on {result['device']}{pace};"
            f" {result['layout']}"
        ),
        *(f"note: {note}" for note in result["notes"]),
        *saved(result),
    ]
    return Group(implicit.render(result) if ranks else _errors_table(result), "\n".join(lines))


def saved(result: Mapping[str, Any]) -> list[str]:
    """Where the model is, and the ledger that has its price."""
    lines = [f"saved in {result['out']} (what may be shown stands outside private/)"]
    if result["ledger"]:
        lines.append(
            f"entered in the ledger {result['ledger']}: dpmf budget show says what all releases"
            " cost together"
        )
    return lines


def _errors_table(result: Mapping[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title=f"{result['mechanism']} on {result['data']}")
    for heading in ("", "private", "RMSE train", "RMSE held-out", "NDCG@10"):
        table.add_column(heading, justify="left" if not heading else "right")

    def numbers(values: Mapping[str, Any]) -> Iterator[str]:
        for name in ("rmse_train", "rmse_test", "ndcg_at_10"):
            yield "-" if values[name] is None else f"{values[name]:.4f}"

    status = result["guarantee"]["status"]
    private = {"proved": "yes, proved", "claimed": "claimed only", "none": "no"}.get(
        status, f"yes, {status}"
    )
    table.add_row("this model", private, *numbers(result))
    for name, values in result["controls"].items():
        free = name == "popularity" and result["presence_is_public"]
        covered = "yes" if values["private"] else "no"
        table.add_row(name.replace("_", " "), "public here" if free else covered, *numbers(values))
    return table
