"""A fitted model: what it released, its guarantee, and for the curator alone what it did not.

On disk it is a folder. Outside `private/` stand only what `Mechanism.release` returned and public
constants:

    model.json            settings, versions, catalogue, guarantee, hashes of the released files
    PRIVACY.md            the guarantee's statement
    release.safetensors   the released arrays, if any are
    private/              mode 0700, files 0600: the curator's factors, who rated what, metrics,
                          every unpriced number
"""

from __future__ import annotations

import dataclasses
import functools
import html
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from accounting.guarantee import Guarantee
from dpmf_jax.data.frames import Kind
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import DataError, UsageError
from dpmf_jax.mechanisms import table
from dpmf_jax.models import evaluation, lists, new_users, storage
from dpmf_jax.models import files as model_file
from dpmf_jax.models.catalogue import lookup
from dpmf_jax.models.files import FORMAT, RELEASE
from dpmf_jax.protocol import Factors, Release

_PARTS = Factors._fields


OWN_FILES = {RELEASE, "PRIVACY.md", "private"}  # of a folder before its model.json


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """Predictions with raw ids in and out.

    Attributes:
      release: what the world may see.
      guarantee: what was promised about it.
      settings: of the run; public.
      users, items: the catalogue, raw ids; public.
      rating_range: declared; public.
      factors: all of them; for the curator, None where the private part is absent.
      seen: (user, item) indices of the training ratings; likewise.
      metrics: unpriced numbers; likewise.
      path: the folder, or None in memory.
      frames: the library whose DataFrame it was fitted from, if any; tables are then its own.
    """

    release: Release
    guarantee: Guarantee
    users: np.ndarray
    items: np.ndarray
    rating_range: tuple[float, float]
    settings: Mapping[str, Any]
    factors: Factors | None = None
    seen: tuple[np.ndarray, np.ndarray] | None = None
    metrics: Mapping[str, Any] | None = None
    path: Path | None = None
    frames: Kind | None = None

    def __repr__(self) -> str:
        return f"Model({self._title}; {self.guarantee.headline})"

    def _repr_html_(self) -> str:
        """What a notebook shows: what it is, the promise, and the whole statement to unfold."""
        title, line, whole = map(
            html.escape, (self._title, self.guarantee.headline, self.guarantee.statement)
        )
        return (
            f"<div><b>{title}</b><br>{line}"
            f"<details><summary>privacy statement</summary><pre>{whole}</pre></details></div>"
        )

    @property
    def _title(self) -> str:
        made = self.settings.get("mechanism", "a mechanism of its own")
        data = f" on {self.settings['data']}" if "data" in self.settings else ""
        where = "in memory" if self.path is None else str(self.path)
        return f"{made}{data}: {len(self.users):,} users, {len(self.items):,} items, {where}"

    @functools.cached_property
    def released_factors(self) -> Factors:
        released = self.release
        if released.sketch is None or released.hashes is None:
            return Factors(*(getattr(released, name) for name in _PARTS))
        if released.rank is None:  # not every release says it
            released = released._replace(rank=self.settings.get("rank"))
        if released.rank is None:
            raise DataError(
                "the release holds a sketch and does not say the rank of its vectors",
                where=str((self.path or Path("MODEL")) / "model.json"),
                fix=(
                    "run it where the curator's private/ folder is, or fit again with a setting"
                    " `rank`"
                ),
            )
        from dpmf_jax.kernels import count_sketch

        return count_sketch.factors(released, len(self.users), len(self.items))

    @property
    def released_arrays(self) -> dict[str, np.ndarray]:
        """The parts of the release that there are, by name: the arrays of release.safetensors."""
        return {name: part for name, part in self.release._asdict().items() if part is not None}

    @property
    def implicit(self) -> bool:
        """Whether it scores items that are not seen, and predicts no ratings."""
        spec = table().get(str(self.settings.get("mechanism")))
        return spec is not None and spec.implicit

    def _refuse_ratings(self, fix: str) -> None:
        """Raises: UsageError where the model predicts no ratings."""
        if self.implicit:
            raise UsageError(
                f"a model of {self.settings['mechanism']} predicts no ratings: it was fitted on who"
                " has seen what, and ranks items",
                fix=fix,
            )

    def all_factors(self) -> Factors:
        """All that is at hand: the released parts, or the curator's where those files are there."""
        known = self.released_factors if self.factors is None else self.factors
        missing = [name for name in _PARTS if getattr(known, name) is None]
        if missing:
            names = ", ".join(name.replace("_", " ") for name in missing)
            folder = self.path or Path("MODEL")
            raise DataError(
                f"this needs the {names}, which this model does not release; they are in"
                " private/factors.safetensors",
                where=str(folder / "private" / "factors.safetensors"),
                fix="run it where the curator's private/ folder is",
            )
        return known

    def pairs(self, user: np.ndarray, item: np.ndarray) -> Ratings:
        return Ratings(
            user, item, np.zeros(len(user), np.float32), self.users, self.items, self.rating_range
        )

    def seen_pairs(self) -> Ratings:
        if self.seen is None:
            folder = self.path or Path("MODEL")
            raise DataError(
                "to leave out what a user has rated, this needs private/seen.safetensors",
                where=str(folder / "private" / "seen.safetensors"),
                fix="run it where the curator's private/ folder is, or ask for include_seen",
            )
        return self.pairs(*self.seen)

    def predict(self, users: Any, items: Any, *, clip: bool = True) -> Any:
        """float32[n]: the predicted rating of items[k] by users[k], raw ids; clipped by default.

        A single id goes with all of the other side; two single ids give a float.

        Raises: DataError for an id that is not in the catalogue, or where a private part is needed
          and absent; UsageError for sequences of different lengths, and for a model that ranks
          and predicts no ratings.
        """
        from dpmf_jax.models import metrics

        self._refuse_ratings("dpmf recommend, or Model.recommend")
        whole = self.all_factors()
        u, i = (
            lookup(catalogue, np.atleast_1d(np.asarray(ids)), name)
            for catalogue, ids, name in ((self.users, users, "user"), (self.items, items, "item"))
        )
        single = np.ndim(users) == 0, np.ndim(items) == 0
        if len(u) != len(i) and not any(single):
            raise UsageError(
                f"{len(u)} users for {len(i)} items", fix="give one item for each user"
            )
        u, i = np.broadcast_arrays(u, i)
        predicted = metrics.predict(whole, u, i, rating_range=self.rating_range if clip else None)
        return float(predicted[0]) if all(single) else predicted

    def fold_in(self, items: Any, ratings: Any = None, **options: Any) -> np.ndarray:
        """User factors of new users, from their ratings and the release alone.

        They are computed as in training: on the same kind of device, a training user's own ratings
        give that user's factors, to the bit. Nothing is kept of the ratings.

        Args:
          items: of one user: raw item ids, with `ratings` their values; or a mapping of item to
            rating, pairs of them, or a table with columns item and rating. Of several users: a
            `Ratings`, or a table with a column user too. For a model of what is seen (`implicit`):
            raw item ids alone, and tables without a column of ratings.
          options: `ignore_unknown` leaves out items that the model does not know; `duplicates`,
            `out_of_range` and `weight` (how much each rating counts) are as in
            `Ratings.from_columns`.

        Returns: float32[1 + d], the level and d factors of one user, in rating units; for several
          users float32[users, 1 + d]. The rating of item i is center[i] + ⟨row, item_factors[i]⟩.

        Raises: DataError for an unknown item, and for ratings that a reader would refuse;
          UsageError where the model's mechanism does not serve new users.
        """
        options |= {"implicit": self.implicit}
        own = new_users.read(self.items, self.rating_range, items, ratings, **options)
        rows = new_users.user_factors(self.settings, self.release, own.ratings)
        return rows if own.several else rows[0]

    def recommend(
        self,
        user: Any = None,
        k: int = 10,
        *,
        ratings: Any = None,
        candidates: Any = None,
        exclude: Any = None,
        include_seen: bool = False,
        **options: Any,
    ) -> Any:
        """The k items of highest predicted rating for one user, best first: (raw item id, rating).

        For several users, in a list or an array: a table with the columns user, item and
        predicted_rating (score, of a model that is `implicit`), the users in the order given. It is
        a DataFrame of the library whose Series, or table of ratings, was given, else of the one
        that the model was fitted from, else a `pyarrow.Table`.

        Items a user rated in training are left out (fewer than k may remain); ties go by the order
        of the catalogue.

        Args:
          user: one or several users of the training data.
          ratings: in place of `user`, those of new users, as in `fold_in`: a list for one user, a
            table for several. Items that these rate are left out. Needs no private part.
          candidates: the items to choose among, such as those in stock; all by default.
          exclude: items that no list may hold.
          include_seen: whether items stay in that a user has rated.
          options: with `ratings`, those of `fold_in`.

        Raises: DataError for an unknown user or item, or where a private part is needed and absent;
          UsageError for k below 1, for both or none of user and ratings, and where no item is left;
          what `fold_in` raises.
        """
        return lists.recommended(
            self,
            user,
            k,
            ratings=ratings,
            candidates=candidates,
            exclude=exclude,
            include_seen=include_seen,
            **options,
        )

    def similar_items(self, item: Any, k: int = 10) -> list[tuple[Any, float]]:
        """The k items whose released factors point most nearly the same way: (raw id, cosine).

        It reads the release alone, so anybody may see it. A factor that is the same for all items,
        such as that of a user's level, says nothing of them and is left out.

        Raises: DataError for an unknown item; UsageError where no item factors are released.
        """
        return lists.similar_items(self, item, k)

    def similar_users(self, user: Any, k: int = 10) -> list[tuple[Any, float]]:
        """The k users whose released factors point most nearly the same way: (raw id, cosine).

        Only where the mechanism releases user factors, which its guarantee then covers.

        Raises: PrivacyError where user factors are each user's own; DataError for an unknown user.
        """
        return lists.similar_users(self, user, k)

    def explain(self, item: Any, ratings: Any, k: int = 10, **options: Any) -> Any:
        """Which of one user's ratings moved the prediction of an item, most first.

        The effect of a rating is what the prediction would lose without it: the user's factors are
        computed again with all other ratings. Effects need not add up. It reads the release and
        these ratings, and is for that user alone.

        Args:
          item: a raw id.
          ratings: of one user, as in `fold_in`, with its `options`.
          k: how many at most.

        Returns: a table with columns item, rating (none where the model is `implicit`) and effect,
          in rating units; of the kind of `ratings`, as in `recommend`.

        Raises: what `fold_in` raises; DataError for an unknown item, and where there is no rating.
        """
        return lists.explained(self, item, ratings, k, **options)

    def evaluate(self, ratings: Any, *, k: int = 10, **options: Any) -> dict[str, Any]:
        """{rmse, mae, ndcg_at_k, recall_at_k, ...} on other ratings; unpriced.

        `metrics.DEFINITIONS` says what each is. The ratings are of any form that `data.given.read`
        knows, with its `options`, on the model's range.

        Ratings of users or items outside the catalogue are left out and counted under `unknown`. Of
        the others, `ratings`, the model was fitted with `seen` and not with `unseen`: rmse and mae
        are of the unseen ones (None where there are none), rmse_seen and mae_seen of the seen ones.
        Without the private part nobody can tell: seen and unseen are None, rmse and mae are of all
        of them, and nothing is ranked. Of a model that is `implicit`, whoever is in a row has seen
        the item, no rating is read, and there are no errors: rmse and mae are None.

        Raises: DataError where no rating is of the catalogue, or where private factors are needed
          and absent.
        """
        return evaluation.evaluated(self, ratings, k, **options)

    def to_numpy(self) -> lists.Vectors:
        """Vectors whose inner products rank items, for an index of such (faiss, implicit, hnswlib).

        A user's score of an item is ⟨user vector, item vector⟩, the predicted rating unclipped. The
        last number of an item's is its centre, and of a user's 1. For a new user it is
        `[*model.fold_in(ratings), 1]`.

        Raises: UsageError where no item factors are released. User vectors are None where user
          factors are each user's own.
        """
        return lists.vectors(self)

    def save(self, path: Path | str) -> Model:
        """Write the folder, its private part to private/.

        model.json comes last, so a folder that has it is whole.

        Raises: UsageError where the folder holds a model already, or anything that no run of this
          library leaves there: what stands outside private/ may be shown.
        """
        path = Path(path)
        if (path / "model.json").exists():
            raise UsageError(
                "there is a model already, and a save never overwrites",
                where=str(path),
                fix="choose another",
            )
        if path.is_dir() and (others := {one.name for one in path.iterdir()} - OWN_FILES):
            raise UsageError(
                f"the folder holds something else, such as {min(others)}, and what lies beside a"
                " model may be shown with it",
                where=str(path),
                fix="choose an empty folder, or a new one",
            )
        with storage.writing(path):
            path.mkdir(parents=True, exist_ok=True)
        if self.factors is not None:
            self._save_private(storage.private_folder(path))
        released = self.released_arrays
        content = {
            "format": FORMAT,
            "settings": dict(self.settings),
            "versions": _versions(),
            "rating_range": list(self.rating_range),
            "guarantee": self.guarantee.to_dict(),
            "files": {RELEASE: storage.write_arrays(path / RELEASE, released)} if released else {},
            "users": _plain_ids(self.users),
            "items": _plain_ids(self.items),
        }
        storage.write_bytes(
            path / "PRIVACY.md", f"# Privacy statement\n\n```\n{self.guarantee}\n```\n".encode()
        )
        model_file.write_signed(path / "model.json", content)
        return dataclasses.replace(self, path=path)

    def _save_private(self, private: Path) -> None:
        assert self.factors is not None
        parts = {name: part for name, part in self.factors._asdict().items() if part is not None}
        files = {
            "factors.safetensors": storage.write_arrays(
                private / "factors.safetensors", parts, private=True
            )
        }
        if self.seen is not None:
            seen = dict(zip(("user", "item"), self.seen, strict=True))
            files["seen.safetensors"] = storage.write_arrays(
                private / "seen.safetensors", seen, private=True
            )
        content = {"files": files, "metrics": dict(self.metrics or {})}
        model_file.write_signed(private / "curator.json", content, private=True)


def load(path: Path | str) -> Model:
    """Read a model's folder; the private part where it is there.

    Raises: DataError where a file is missing, changed or cut short, naming it.
    """
    path = Path(path)
    content, guarantee, arrays = model_file.read(path)
    try:
        model = Model(
            release=Release(**arrays),
            guarantee=guarantee,
            users=np.array(content["users"]),
            items=np.array(content["items"]),
            rating_range=tuple(content["rating_range"]),
            settings=content["settings"],
            path=path,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise model_file.not_a_model(path / "model.json", error) from None
    return _with_private(model, path / "private")


def _with_private(model: Model, private: Path) -> Model:
    if not (private / "curator.json").exists():
        return model
    content = model_file.read_signed(private / "curator.json")
    files = content["files"]

    def arrays(name: str) -> dict[str, np.ndarray] | None:
        listed = name in files and (private / name).exists()
        return storage.read_arrays(private / name, sha256=files[name]) if listed else None

    parts, seen = arrays("factors.safetensors"), arrays("seen.safetensors")
    return dataclasses.replace(
        model,
        factors=None if parts is None else Factors(**parts),
        seen=None if seen is None else (seen["user"], seen["item"]),
        metrics=content["metrics"],
    )


def _versions() -> dict[str, str]:
    return {
        name: metadata.version(name)
        for name in ("dpmf-jax", "jax", "jaxlib", "numpy", "optax", "dp-accounting")
    }


def _plain_ids(ids: np.ndarray) -> list[Any]:
    return ids.tolist()
