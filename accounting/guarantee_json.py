"""The fields of a guarantee as JSON has them, and back, also as older versions wrote them."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from accounting import loss
from accounting.loss import Approximate, Pure
from accounting.relation import Relation, of_sentence
from accounting.status import REAL_NUMBERS
from accounting.terms import Group

# Keys that older versions did not write.
NEWER = {
    *("against", "real_number_noise", "claimed_by", "relation_kind", "rounds_are_seen"),
    "surplus_noise",
    "groups",
}


def to_json(value: Any) -> Any:
    """A field's value: tuples as lists, infinity as the string "inf"."""
    if isinstance(value, tuple):
        return [to_json(entry) for entry in value]
    if isinstance(value, dict):
        return {name: to_json(entry) for name, entry in value.items()}
    return "inf" if value == math.inf else value


def fields(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The fields of these names, as this version has them.

    `Guarantee.from_dict` says how what an older version wrote is read.
    """
    read = {name: _from_json(name, values[name]) for name in names if name in values}
    read["relation"] = _relation(values)
    return read if "real_number_noise" in values else _of_an_older_version(read)


def _relation(values: Mapping[str, Any]) -> Relation:
    """The relation by its kind; by its sentence where that is all there is.

    The kind is missing where an older version wrote it, and "stated" where the sentence is none of
    ours.
    """
    sentence, change = values["relation"], values.get("largest_change")
    kind = values.get("relation_kind")
    return of_sentence(sentence, change) if kind in (None, "stated") else Relation(kind, change)


def _of_an_older_version(values: dict[str, Any]) -> dict[str, Any]:
    """Its fields as this version has them, see `Guarantee.from_dict`."""
    reports = all(isinstance(part, Pure | Approximate) for part in values["losses"])
    floats = any("float32" in str(sentence) for sentence in values["assumptions"])
    if values["status"] == "none" or (values["unit"] == "user" and reports and not floats):
        return values
    status = REAL_NUMBERS if values["status"] == "proved" else values["status"]
    return {**values, "status": status, "real_number_noise": True}


def _from_json(name: str, value: Any) -> Any:
    if name == "accountants":
        return {key: _from_json("epsilon", entry) for key, entry in dict(value).items()}
    if name == "losses":
        if not isinstance(value, list):
            raise ValueError(f"losses must be a list, got {value!r}")
        return tuple(loss.from_dict(entry) for entry in value)
    if name == "groups":
        if not isinstance(value, list):
            raise ValueError(f"groups must be a list, got {value!r}")
        return tuple(_group(entry) for entry in value)
    if name == "against" and isinstance(value, list):
        return tuple(tuple(row) if isinstance(row, list) else row for row in value)
    if isinstance(value, list):
        return tuple(value)
    return math.inf if name == "epsilon" and value == "inf" else value


def _group(entry: Mapping[str, Any]) -> Group:
    losses = tuple(loss.from_dict(one) for one in entry["losses"])
    return Group(entry["num_users"], losses, _from_json("epsilon", entry["epsilon"]))
