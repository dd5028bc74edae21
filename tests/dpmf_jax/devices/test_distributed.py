"""Several processes over loopback: the model of one, own ratings only, and what a lost one does."""

import json
import shlex
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from dpmf_jax.data import netflix, parquet, text
from dpmf_jax.data.formats import Format
from dpmf_jax.errors import DataError
from dpmf_jax.models import storage
from dpmf_jax.training import fit as fitting
from tests.cases.distributed import (
    SECONDS,
    ended,
    free_port,
    one_after_another,
    start,
    together,
)
from tests.cases.fit import JOINT, write_ratings

ALS = "als --epsilon 20 --rank 2 --steps 2"
FLAGS = [*JOINT, *shlex.split("--rating-range 1 5 --steps 6 --rank 3 --seed 0 --devices 1 --json")]


@pytest.fixture(scope="module")
def ratings(tmp_path_factory):
    """40 × 12; ids are integers but for one user's, so that only some processes see text."""
    random = np.random.default_rng(0)
    user, item = np.nonzero(random.random((40, 12)) < 0.5)
    names = np.array([*map(str, range(100, 139)), "a user"])
    path = tmp_path_factory.mktemp("ratings") / "ratings.csv"
    rows = [(names[u], i, random.integers(1, 6)) for u, i in zip(user, item, strict=True)]
    write_ratings(path, (rows[place] for place in random.permutation(len(rows))))
    return path


@pytest.fixture(scope="module")
def one_process(ratings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "model"
    [(code, out, err)] = together(1, str(ratings), *FLAGS, "--out", str(folder))
    assert code == 0, err
    return folder, json.loads(out)


def same_model(folder: Path, other: Path) -> None:
    """To the bit: their mechanism's sums are whole numbers."""
    ours, theirs = (storage.read_arrays(place / "release.safetensors") for place in (folder, other))
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    ours, theirs = (json.loads((place / "model.json").read_text()) for place in (folder, other))
    for field in ("users", "items", "guarantee", "settings"):
        assert ours.get(field) == theirs.get(field), field


# Whose sums are whole numbers, and whose are not.
WHOLE = (
    "gaussian-public-items --steps 4",
    "user-means",
    "ridge",
    ALS,
    "means --epsilon 8 --user-budgets {budgets}",
)
CLOSE = (
    "gaussian --steps 4 --rank 3",
    "non-private --steps 4 --rank 3 --center item",
    "local --rounds 3 --rank 3",
    "local --rounds 3 --rank 3 --projection 5",
    "objective-public-users",
    "objective-statistics",
    "federated --dynamic --steps 3 --rank 3",
    "federated-user",
    "federated-statistics",
)


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
def test_mechanisms_of_each_kind_that_may_be_shared_are_the_same(whole, ratings, tmp_path):
    catalogue = {"users": [*map(str, range(100, 139)), "a user"], "items": [*map(str, range(12))]}
    flags = shlex.split("--rating-range 1 5 --seed 0 --devices 1 --json --controls simple")
    flags.append(str(ratings))
    for what, ids in catalogue.items():
        (tmp_path / what).write_text("\n".join(ids))
        flags += [f"--catalogue-{what}", str(tmp_path / what)]
    budgets = tmp_path / "budgets.csv"
    budgets.write_text("user,epsilon\na user,20\n" + "".join(f"{u},1\n" for u in range(100, 120)))
    every = [words.format(budgets=budgets) for words in (WHOLE if whole else CLOSE)]
    found = []
    for number in (1, 2):
        runs = [
            [*flags, "--out", str(tmp_path / f"{place}-{number}"), "--mechanism", *words.split()]
            for place, words in enumerate(every)
        ]
        found.append(one_after_another(number, runs))
    alone, shared = found
    for place, mechanism in enumerate(every):
        (one, code), (two, *codes) = alone[place], shared[place]
        assert code == (fitting.Diverged.exit_code if one["diverged"] else 0), mechanism
        assert codes == [code, code], mechanism
        for name in ("rmse_train", "rmse_test"):
            assert two[name] == pytest.approx(one[name], rel=1e-4), (mechanism, name)
        assert one["guarantee"] == two["guarantee"]
        if whole:
            same_model(*(tmp_path / f"{place}-{number}" for number in (1, 2)))


SLOW_TO_END = """
import sys, time
from experiments.cli import console, main
emit = console.emit
def late(*result, **how):
    time.sleep(5 if "--process-id 1" in " ".join(sys.argv) else 0)
    emit(*result, **how)
console.emit = late
sys.argv.insert(1, "fit")
main.entry()
"""


@pytest.mark.seconds
def test_all_processes_of_a_run_that_diverges_say_so_whoever_ends_first(ratings, tmp_path):
    words = [str(ratings), *shlex.split("--rating-range 1 5 --devices 1 --seed 0 --json")]
    words += shlex.split("--mechanism local --rounds 3 --rank 3")
    words += ["--controls", "none", "--out", str(tmp_path / "model")]
    ends = together(2, *words, program=("-c", SLOW_TO_END), quick=True)
    assert json.loads(ends[0][1])["diverged"]
    assert [code for code, _, _ in ends] == [fitting.Diverged.exit_code] * 2, ends


@pytest.mark.seconds
@pytest.mark.parametrize("number", [2, 4])
def test_processes_make_the_model_that_one_makes(number, ratings, one_process, tmp_path):
    folder, result = one_process
    words = [str(ratings), *FLAGS, "--out", str(tmp_path / "model")]
    words += ["--controls", "none"] if number > 2 else []  # nor lists, which have one beside them
    first, *others = together(number, *words)
    assert first[0] == 0, first[2]
    assert [*others] == [(0, "", "")] * (number - 1)  # only the first prints
    same_model(tmp_path / "model", folder)
    shared = json.loads(first[1])
    for name in ("rmse_train", "rmse_test"):
        assert shared[name] == pytest.approx(result[name], rel=1e-5), name
    if number == 2:
        assert shared["ndcg_at_10"] == pytest.approx(result["ndcg_at_10"], rel=1e-4)
    assert shared["controls"].keys() == (result["controls"].keys() if number == 2 else set())
    for control in shared["controls"]:
        values = result["controls"][control]
        for name, value in values.items():  # popularity has no errors, the global mean no order
            found = shared["controls"][control][name]
            assert found == (value if value is None else pytest.approx(value, rel=1e-4)), (
                control,
                name,
            )
    assert f"of {number} processes" in shared["layout"]
    assert not (
        tmp_path / "model" / "private" / "seen.safetensors"
    ).exists()  # no process knows who rated what


HOLDS = """
import json, sys
from experiments.cli import devices
from experiments.cli.devices import ProcessFlags
port, number = sys.argv[-1].partition(":")[2], sys.argv[-3]
devices.join(ProcessFlags(distributed=True, coordinator=sys.argv[-1], processes=3, process_id=int(
    number)), "")
import jax, numpy as np
from dpmf_jax.data import datasets
from dpmf_jax.devices import hosts
from dpmf_jax.noise import keys
from dpmf_jax import layout
drawn = [jax.random.key_data(keys.from_operating_system()).tolist() for _ in range(2)]
own = datasets.load(sys.argv[1], rating_range=(1, 5), shared=True)
data = layout.make(own)
shards = [shard.data for shard in data.stored.by_user.row.addressable_shards]
rows = np.unique(np.concatenate([np.asarray(shard) for shard in shards]))
columns = np.unique(np.concatenate([np.asarray(s.data) for s
    in data.stored.by_item.column.addressable_shards]))
open(sys.argv[2] + number, "w").write(json.dumps({
    "keys": drawn,
    "held": sorted({str(own.users[user]) for user in own.user}),
    "ratings": len(own), "all": data.num_ratings, "users": own.users.tolist(),
    "on_devices": [str(own.users[row]) for row in rows if row < own.num_users],
    "as_columns": [str(own.users[column]) for column in columns if column < own.num_users],
}))
"""


@pytest.mark.seconds
def test_a_process_holds_its_own_users_ratings_and_no_others(ratings, tmp_path):
    ends = together(3, "-c", HOLDS, str(ratings), str(tmp_path / "holds"), program=())
    assert all(code == 0 for code, _, _ in ends), ends
    found = [json.loads((tmp_path / f"holds{number}").read_text()) for number in range(3)]
    every = sorted(line.split(",")[0] for line in set(ratings.read_text().splitlines()[1:]))
    # each user in one process
    assert sorted(user for one in found for user in one["held"]) == sorted(set(every))
    assert sum(one["ratings"] for one in found) == len(every)
    # a release has one key, or its noise is nobody's
    assert all(one["keys"] == found[0]["keys"] for one in found)
    assert found[0]["keys"][0] != found[0]["keys"][1]
    for one in found:
        assert 0 < one["ratings"] < len(every)
        assert sorted(one["on_devices"]) == sorted(one["as_columns"]) == one["held"]
        assert one["all"] == len(every)
        assert one["users"] == sorted(set(every))  # the catalogue is everybody's


def as_text(ratings, folder, keep=None):
    return text.read_text(
        ratings, Format(user="user", item="item", rating="rating", header=True), keep
    )


def as_parquet(ratings, folder, keep=None, *, kind="string"):
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    table = pyarrow.csv.read_csv(ratings)
    user = table["user"].dictionary_encode() if kind == "dictionary" else table["user"]
    if kind == "int":
        user = pa.array([300 if name == "a user" else int(name) for name in user.to_pylist()])
    path = folder / f"{kind}.parquet"
    pyarrow.parquet.write_table(table.set_column(0, "user", user), path, row_group_size=50)
    return parquet.read_parquet(path, keep=keep)


def as_netflix(ratings, folder, keep=None):
    """In two files, a movie in several pieces."""
    rows = [
        line.replace("a user", "300").split(",") for line in ratings.read_text().splitlines()[1:]
    ]
    half, paths = len(rows) // 2, [folder / "combined_data_1.txt", folder / "combined_data_2.txt"]
    for path, part in zip(paths, (rows[:half], rows[half:]), strict=True):
        path.write_text(
            "".join(f"{int(item) + 1}:\n{user},{value},2005-01-01\n" for user, item, value in part)
        )
    return netflix.read_netflix(paths, keep)


@pytest.mark.parametrize(
    "read",
    [
        as_text,
        *(partial(as_parquet, kind=kind) for kind in ("string", "int", "dictionary")),
        as_netflix,
    ],
    ids=["text", "parquet", "parquet of integers", "parquet of a dictionary", "netflix"],
)
def test_files_are_read_without_the_others_rows(read, ratings, tmp_path, monkeypatch):
    monkeypatch.setattr("dpmf_jax.data.text.BLOCK", 300)
    monkeypatch.setattr("dpmf_jax.data.netflix.CHUNK", 300)
    monkeypatch.setattr("dpmf_jax.data.parquet.BLOCK", 30)

    def keep(ids):
        return np.array([str(entry) in {"100", "a user", "300", "117"} for entry in ids], bool)

    whole, some = read(ratings, tmp_path), read(ratings, tmp_path, keep)
    users, items = (column.ids[column.codes] for column in whole[:2])
    rows = np.flatnonzero(keep(users.tolist()))
    np.testing.assert_array_equal(some.user.ids[some.user.codes], users[rows])
    np.testing.assert_array_equal(some.item.ids[some.item.codes], items[rows])
    np.testing.assert_array_equal(some.value, whole.value[rows])
    assert set(some.user.ids) == set(users[rows])  # nor the others' ids
    assert some.where(np.arange(len(rows))) == whole.where(rows)
    nobody = read(ratings, tmp_path, lambda ids: np.zeros(len(ids), bool))
    assert [len(part) for part in (nobody.value, nobody.user.codes, nobody.item.codes)] == [0, 0, 0]


def test_a_parquet_row_without_a_user_is_named_though_it_is_nobodys(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet

    path = tmp_path / "ratings.parquet"
    users = pa.array([*range(100), None])
    pyarrow.parquet.write_table(
        pa.table({"user": users, "item": range(101), "rating": [3.0] * 101}), path
    )
    for keep in (None, lambda ids: np.zeros(len(ids), bool)):
        with pytest.raises(DataError, match=r"user id is empty\nwhere: .*row 100"):
            parquet.read_parquet(path, keep=keep)


@pytest.mark.seconds
def test_what_is_wrong_for_one_process_ends_all_with_its_words(ratings, tmp_path):
    owner = None
    lines = ratings.read_text().splitlines()
    for number in (0, 1):  # a rating out of range, of a user whom the second process holds
        bad = tmp_path / f"bad{number}.csv"
        user = next(u for u in map(str, range(100, 139)) if _owner(u, 2) == number)
        owner = next(row for row, line in enumerate(lines) if line.startswith(f"{user},"))
        bad.write_text(
            "\n".join([*lines[:owner], lines[owner].rpartition(",")[0] + ",9", *lines[owner + 1 :]])
            + "\n"
        )
        first, second = together(2, str(bad), *FLAGS, "--out", str(tmp_path / "model"))
        assert (first[0], second[0]) == (DataError.exit_code, DataError.exit_code), (first, second)
        assert "outside the declared range" in first[2]
        assert f"line {owner + 1}" in first[2]
        assert ("(process 1)" in first[2]) == (number == 1)
        assert second[1:] == ("", "")
    assert not (tmp_path / "model").exists()


def _owner(user: str, of: int) -> int:
    import hashlib

    return int.from_bytes(hashlib.blake2b(user.encode(), digest_size=8).digest()) % of


@pytest.mark.seconds
def test_processes_that_were_told_different_things_do_not_start(ratings, tmp_path):
    each = {1: ["--learning-rate", "0.5"]}
    ends = together(2, str(ratings), *FLAGS, "--out", str(tmp_path / "model"), each=each)
    assert [code for code, _, _ in ends] == [2, 2]
    assert "different flags" in ends[0][2]


@pytest.mark.seconds
def test_a_lost_process_ends_the_run_and_another_number_of_them_goes_on(ratings, tmp_path):
    # at the default rate 800 noisy steps diverge
    many = [
        *FLAGS,
        "--lost-after",
        "10",
        "--learning-rate",
        "1e-5",
        "--controls",
        "none",
    ]
    many[many.index("--steps") + 1] = "800"
    [(code, _, err)] = together(1, str(ratings), *many, "--out", str(tmp_path / "whole"))
    assert code == 0, err
    folder, port = tmp_path / "model", free_port()
    first, second = (
        start(k, str(ratings), *many, "--out", str(folder), of=2, port=port) for k in range(2)
    )
    deadline = time.monotonic() + SECONDS
    metrics = folder / "private" / "metrics.jsonl"
    while (
        not (metrics.exists() and metrics.stat().st_size)
        and time.monotonic() < deadline
        and first.poll() is None
    ):
        time.sleep(0.02)
    second.send_signal(signal.SIGKILL)
    lost = time.monotonic()
    [(code, out, err), _] = ended([first, second])
    assert (code, out) == (1, ""), err
    assert time.monotonic() - lost < 60
    assert "another process of the run is gone" in err
    assert "--resume" in err
    assert "Traceback" not in err
    assert not (folder / "model.json").exists()
    [(code, _, err)] = together(1, "--resume", str(folder), "--devices", "1", "--json")
    assert code == 0, err
    same_model(folder, tmp_path / "whole")


@pytest.mark.seconds
def test_a_process_that_hangs_ends_the_run_with_a_word(ratings, tmp_path):
    words = [str(ratings), *FLAGS, "--lost-after", "5", "--out", str(tmp_path / "model")]
    words[words.index("--steps") + 1] = "1000000"
    port = free_port()
    first, second = (start(k, *words, of=2, port=port) for k in range(2))
    deadline = time.monotonic() + SECONDS
    metrics = tmp_path / "model" / "private" / "metrics.jsonl"
    while (
        not (metrics.exists() and metrics.stat().st_size)
        and time.monotonic() < deadline
        and first.poll() is None
    ):
        time.sleep(0.02)
    second.send_signal(signal.SIGSTOP)
    try:
        [(code, out, err)] = ended([first])
    finally:
        second.kill()
        second.communicate()
    assert out == ""
    assert "another task died" in err, err
    if code == 1:  # jax 0.8 leaves without an abort that could be followed by words of ours
        assert jax.__version_info__ < (0, 10)
        return
    assert code == -signal.SIGABRT, err
    assert "another one of the run gave no sign of life (--lost-after 5)" in err
    assert err.splitlines()[-1].startswith("fix: start the run again")


def test_a_fault_of_another_kind_is_told_as_what_it_is():
    crash = "import faulthandler; from experiments.cli import devices"
    crash += "; devices.leave_last_words(devices.ProcessFlags())"
    for cause, told in (("_sigsegv", "Segmentation fault"), ("_sigabrt", "no sign of life")):
        run = subprocess.run(
            [sys.executable, "-c", f"{crash}; faulthandler.{cause}()"],
            capture_output=True,
            text=True,
        )
        assert (told in run.stderr, "no sign of life" in run.stderr) == (
            True,
            cause == "_sigabrt",
        ), run.stderr
    run = subprocess.run([sys.executable, "-c", crash], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.seconds
def test_a_process_that_waits_in_vain_says_so_and_leaves(ratings, capfd):
    from experiments.cli import main as cli

    port = free_port()
    words = [str(ratings), *FLAGS, "--lost-after", "2"]
    for number in (0, 1):
        [(code, out, err)] = ended([start(number, *words, of=2, port=port)])
        assert (code, out) == (1, "")
        assert "did not come together" in err
        assert "Check failure" not in err
    with socket.create_server(("", port)):
        [(code, _, err)] = ended([start(0, *words, of=2, port=port)])
    assert code == 2
    assert f"cannot listen at port {port}" in err
    several = ["--distributed", "--processes", "2", "--process-id", "0"]
    assert cli.main(["fit", *words, *several, "--coordinator", "here"]) == 2
    assert "no HOST:PORT" in capfd.readouterr().err


def test_one_process_needs_no_others_and_says_what_it_lacks(ratings, tmp_path, capsys):
    from experiments.cli import main as cli

    for more, said in ((), "without --distributed"), (("--distributed",), "--coordinator"):
        assert cli.main(["fit", str(ratings), *FLAGS, *more, "--processes", "2"]) == 2
        assert said in capsys.readouterr().err
    for mechanism in ("dpsgd", "objective"):
        words = ["fit", str(ratings), "--mechanism", mechanism, "--distributed", "--processes", "1"]
        assert cli.main(words) == 2
        assert "in one process" in capsys.readouterr().err
