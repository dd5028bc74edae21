"""Published data sets by name: files, layout, declared range, official splits, hashes, sources."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from dpmf_jax.data.formats import Format


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """What is known about a published data set.

    Attributes:
      title, size: for people.
      rating_range: the lowest and the highest possible rating.
      files: candidates under the data folder. The first that exists is read; with `*`, many files
        together.
      layout: of its files; None for the Netflix Prize's own. Times are read where they are asked
        for alone.
      source: how to get the data.
      not_rated: the value that means "no rating".
      splits: of each official split, the names of the train and test files, in the folder of the
        ratings.
      sha256: of the file that this project checked.
      triples: of its sorted triples (`Ratings.sha256`).
    """

    title: str
    size: str
    rating_range: tuple[float, float]
    files: tuple[str, ...]
    layout: Format | None
    source: str
    not_rated: float | None = None
    splits: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    sha256: str | None = None
    triples: str | None = None


COLONS = Format(delimiter="::", num_columns=4, integer_ids=True, time=3)
MOVIELENS_CSV = Format(
    user="userId",
    item="movieId",
    rating="rating",
    time="timestamp",
    header=True,
    integer_ids=True,
)
COMMAS = Format(num_columns=3, integer_ids=True)
ANIME = Format(user="user_id", item="anime_id", rating="rating", header=True, integer_ids=True)
GROUPLENS = (
    "from the MovieLens page of GroupLens (University of Minnesota); its README forbids"
    " redistribution"
)
SLICE_OF = "a slice of the project's own, read from a folder that you were given"

DATASETS: Mapping[str, Dataset] = MappingProxyType(
    {
        "ml-100k": Dataset(
            title="MovieLens 100K",
            size="100,000 ratings, 943 users, 1,682 movies",
            rating_range=(1, 5),
            files=("ml-100k/u.data", "u.data"),
            layout=Format(delimiter="\t", num_columns=4, integer_ids=True, time=3),
            source=f"get ml-100k.zip {GROUPLENS}",
            splits={
                name: (f"{name}.base", f"{name}.test")
                for name in ("u1", "u2", "u3", "u4", "u5", "ua", "ub")
            },
            sha256="06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490",
            triples="b594a3f5c81cda8823314143253183089e973afb92c66e325f183b815fd3a2b1",
        ),
        "ml-1m": Dataset(
            title="MovieLens 1M",
            size="1,000,209 ratings, 6,040 users, 3,706 movies",
            rating_range=(1, 5),
            files=("ml-1m/ratings.dat", "ratings.dat"),
            layout=COLONS,
            source=f"get ml-1m.zip {GROUPLENS}",
            # no file hash: the copy that was checked differs from the official file in its
            # timestamps
            triples="83aeb0d4c60cc7c2174893efce284770056775e6ac3e11f6ab995e326810da20",
        ),
        "ml-10m": Dataset(
            title="MovieLens 10M, half stars",
            size="10,000,054 ratings, 69,878 users, 10,677 movies",
            rating_range=(0.5, 5),
            files=("ml-10M100K/ratings.dat", "ml-10m/ratings.dat", "ratings.dat"),
            layout=COLONS,
            source=f"get ml-10m.zip {GROUPLENS}; its script split_ratings.sh makes the splits",
            splits={
                name: (f"{name}.train", f"{name}.test")
                for name in ("r1", "r2", "r3", "r4", "r5", "ra", "rb")
            },
        ),
        "ml-20m": Dataset(
            title="MovieLens 20M, half stars",
            size="20,000,263 ratings, 138,493 users, 26,744 movies",
            rating_range=(0.5, 5),
            files=("ml-20m/ratings.csv", "ratings.csv"),
            layout=MOVIELENS_CSV,
            source=f"get ml-20m.zip {GROUPLENS}",
        ),
        "ml-25m": Dataset(
            title="MovieLens 25M, half stars",
            size="25,000,095 ratings, 162,541 users, 59,047 movies",
            rating_range=(0.5, 5),
            files=("ml-25m/ratings.csv", "ratings.csv"),
            layout=MOVIELENS_CSV,
            source=f"get ml-25m.zip {GROUPLENS}",
        ),
        "ml-32m": Dataset(
            title="MovieLens 32M, half stars",
            size="32,000,204 ratings, 200,948 users, 84,432 movies",
            rating_range=(0.5, 5),
            files=("ml-32m/ratings.csv", "ratings.csv"),
            layout=MOVIELENS_CSV,
            source=f"get ml-32m.zip {GROUPLENS}",
        ),
        "netflix": Dataset(
            title="Netflix Prize",
            size="100,480,507 ratings, 480,189 users, 17,770 movies",
            rating_range=(1, 5),
            files=tuple(
                folder + pattern
                for pattern in ("combined_data_*.txt", "training_set/mv_*.txt", "mv_*.txt")
                for folder in ("netflix/", "netflix-prize/", "")
            ),
            layout=None,
            source=(
                "Netflix no longer offers it; copies stand in public archives under the name"
                " 'Netflix Prize data'"
            ),
        ),
        "netflix-52": Dataset(
            title="Netflix Prize, 52 movies",
            size="245,189 ratings, 95,029 users, 52 movies",
            rating_range=(1, 5),
            files=("netflix-52/ratings.csv", "ratings.csv"),
            layout=Format(user="user_id", item="item_id", rating="rating", header=True),
            source=SLICE_OF,
            sha256="886169878c4e1e7dfba75b935ce00ba947944a22c9c2325597286976d76ab647",
            triples="a4b50373645d06a6db9b7e77711f9e4b921efe46095d6a7474a97bbf8a602ed6",
        ),
        "anime": Dataset(
            title="Anime ratings (CooperUnion), -1 is watched but not rated",
            size="6,337,241 ratings and 1,476,496 of -1, 73,515 users, 11,200 anime",
            rating_range=(1, 10),
            files=("anime/rating.csv", "rating.csv"),
            layout=ANIME,
            source=(
                "get 'Anime Recommendations Database' of CooperUnion from Kaggle; rating.csv is the"
                " file"
            ),
            not_rated=-1,
        ),
        "anime-5000": Dataset(
            title="Anime ratings of 5,000 users, -1 is watched but not rated",
            size="419,943 ratings and 100,666 of -1, 5,000 users, 7,390 anime",
            rating_range=(1, 10),
            files=("anime-5000/rating.csv", "rating.csv"),
            layout=ANIME,
            source=SLICE_OF,
            not_rated=-1,
            sha256="48f2ca32312306649f269cf9ba5dd665b161076c4eda30b507bd799f7a4a458b",
            triples="04cfbecb693031c89ec8ef23443cc808fd1b77c6ff545b209ee48ec0d669e4b6",
        ),
        "libimseti": Dataset(
            title="LibimSeTi dating ratings",
            size="17,359,346 ratings, 135,359 users, 168,791 profiles",
            rating_range=(1, 10),
            files=("libimseti/ratings.dat", "ratings.dat"),
            layout=COMMAS,
            source=(
                "get libimseti-complete.zip from the page of Vaclav Petricek on the LibimSeTi"
                " dating agency"
            ),
        ),
        "libimseti-9k": Dataset(
            title="LibimSeTi dating ratings among ids under 10,000",
            size="68,306 ratings, 9,223 users, 4,087 profiles",
            rating_range=(1, 10),
            files=("libimseti-9k/ratings.dat", "ratings.dat"),
            layout=COMMAS,
            source=SLICE_OF,
            sha256="41e4e91e4c0229224309846f9a0089512ea1408ec2ccb4e35b88adace7db7d00",
            triples="dda02edc2c30e36b6f57a7ef48da989ae99f6cf5469fbae72a88fa5b5f4927c0",
        ),
    }
)
