"""The ratings on the device, and all that a mechanism may ask of them.

A mechanism writes a function for *one* row: one user with the items rated, or one item with its
raters. The operations apply it to all rows, in both orientations. This package alone knows how rows
are stored, cut into blocks, and spread over devices.

Three kinds of layout stand behind the same operations:

- "split": each row is cut into pieces of fixed width and padded. Work grows with the number of
  ratings.
- "dense": a table of users by items, and a mask. Work grows with the size of the table, as matrix
  products.
- "stream": split, in files that are read while a program runs, for ratings larger than the device.
  It offers the two sums alone, on one device. It is never chosen automatically.

`make(kind="auto")` chooses from public sizes and the backend, never from who rated what. The shapes
of a split layout depend on how many ratings each row has. They stay with the curator, like the
ratings.

Numbers on the device are float32, int32 or bool; products are full float32. Every operation can be
jitted, scanned, and vmapped over trees and over data of equal shape.

Several devices have equally many users each, in their order: those users' ratings, and inside a
program the users' rows of whatever there is per user. Sums per item are added up over the devices.
Results equal those of one device up to float32 summation. CPU cores are used in the same way: each
device runs its blocks on one thread. Whether there are blocks is decided when a program is traced,
by the backend.

Several processes (`devices.hosts`) run a program together. Each lays out the ratings that it holds,
in pieces spread evenly over its own devices. Processes hold users in no particular order. Per-user
arrays are therefore replicated on every device and summed across them.
"""

from dpmf_jax.layout.build import choose, describe, make, replicate
from dpmf_jax.layout.neighbours import (
    Address,
    locate,
    reflect_user,
    remove_rating,
    remove_user,
    replace_value,
)
from dpmf_jax.layout.operations import (
    INDEX,
    exact_outer_by_item,
    fold_by_item,
    fold_by_user,
    map_ratings,
    outer_by_item,
    pad_rank,
    stored_values,
    sum_by_item,
    sum_by_user,
)
from dpmf_jax.layout.split import WEIGHT_STEPS
from dpmf_jax.layout.stored import Dense, Layout, Split, on_one_device
from dpmf_jax.layout.take import take_users

__all__ = [
    "INDEX",
    "WEIGHT_STEPS",
    "Address",
    "Dense",
    "Layout",
    "Split",
    "choose",
    "describe",
    "exact_outer_by_item",
    "fold_by_item",
    "fold_by_user",
    "locate",
    "make",
    "map_ratings",
    "on_one_device",
    "outer_by_item",
    "pad_rank",
    "reflect_user",
    "remove_rating",
    "remove_user",
    "replace_value",
    "replicate",
    "stored_values",
    "sum_by_item",
    "sum_by_user",
    "take_users",
]
