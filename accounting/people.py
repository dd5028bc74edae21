"""Whose ratings a release is about, as far as a ledger may know: a keyed sample of users' ids.

An id is hashed (BLAKE2b, 64 bits) under a key that a ledger draws for itself. The smallest hashes
are kept: at most 256, and those of at most a quarter of the users. They estimate how many users two
lists share, since whoever is in both has the same hash in both. A sample is no list of users, but
it does tell something: whoever holds the ledger holds the key too, and can test whether a guessed
id is among those that were kept.
"""

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from accounting import guards

# hashes: where two lists of 10,000 share 5,000, the estimate is then off by 6% (a standard error)
KEPT = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class People:
    """A sample of the users of one release.

    Attributes:
      key: 32 hexadecimal digits, of the hash; samples under two keys cannot be compared.
      users: how many there are, rated or not: those of the catalogue.
      hashes: the smallest ones of all users, ascending, below 2^64.

    Raises:
      ValueError: a field is not what it should be.
    """

    key: str
    users: int
    hashes: tuple[int, ...]

    def __post_init__(self):
        if not (isinstance(self.key, str) and re.fullmatch(r"[0-9a-f]{32}", self.key)):
            raise ValueError(f"people: key must be 32 hexadecimal digits, got {self.key!r}")
        guards.count("people: users", self.users)
        rising = all(
            low < high
            for low, high in zip((-1, *self.hashes), (*self.hashes, 1 << 64), strict=True)
        )
        if not (rising and 1 <= len(self.hashes) <= self.users):
            raise ValueError(
                "people: hashes must be 64-bit numbers in ascending order, one to as many as users"
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON values; the hashes as one text of 16 hexadecimal digits each."""
        return {
            "key": self.key,
            "users": self.users,
            "hashes": "".join(f"{one:016x}" for one in self.hashes),
        }

    @classmethod
    def from_dict(cls, values: Any) -> "People":
        """What `to_dict` gave. Raises: ValueError for anything else."""
        if not (isinstance(values, Mapping) and set(values) == {"key", "users", "hashes"}):
            raise ValueError("people must be null, or hold key, users and hashes")
        text = values["hashes"]
        if not (isinstance(text, str) and re.fullmatch(r"([0-9a-f]{16})*", text)):
            raise ValueError("people: hashes must be a text of 16 hexadecimal digits each")
        hashes = tuple(int(text[at : at + 16], 16) for at in range(0, len(text), 16))
        return cls(key=values["key"], users=values["users"], hashes=hashes)


def sample(ids: Iterable[Any], *, key: str) -> People:
    """The sample of these user ids; 1 and "1" are one id, and one that occurs twice counts once."""
    secret = bytes.fromhex(key)
    found = {hashlib.blake2b(str(one).encode(), digest_size=8, key=secret).digest() for one in ids}
    kept = sorted(found)[: max(1, min(KEPT, len(found) // 4))]
    return People(
        key=key, users=len(found), hashes=tuple(int.from_bytes(one, "big") for one in kept)
    )


def num_shared(first: People, second: People) -> int | None:
    """About how many users are in both samples; 0 where none is, None where the keys differ.

    Both samples are complete up to the smaller of their largest hashes. Of the hashes there, the
    share that is in both estimates which share of all users is in both. A few shared users among
    many may leave no trace, and so may a small list within one that is hundreds of times longer.
    """
    if first.key != second.key:
        return None
    bound = min(first.hashes[-1], second.hashes[-1])
    here, there = ({one for one in people.hashes if one <= bound} for people in (first, second))
    both, either = len(here & there), len(here | there)
    estimate = round((first.users + second.users) * both / (both + either))
    return min(max(estimate, both), first.users, second.users)
