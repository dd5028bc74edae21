"""`dpmf audit --mechanism FILE.py:NAME`: the example of docs/your_mechanism.md, and mistakes."""

import json
import re
from pathlib import Path

import pytest

from dpmf_jax.errors import UsageError
from experiments.cli import main as cli
from experiments.fit import mechanism_file
from tests.cases import CHECKOUT
from tests.cases.fit import RANGE

pytestmark = pytest.mark.usefixtures("quick_compilation", "elsewhere")

PAGE = (CHECKOUT / "docs" / "your_mechanism.md").read_text()
[EXAMPLE] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
NAMED = "item_means.py:item_means"
ONE_STEP = ("audit", "--mechanism", NAMED, "--steps", "1", "--quick", "--json")
# What the page's table of mistakes changes, into what, and the finding that it names.
MISTAKES = [
    ("rounded_normal(Z * UNITS)", "rounded_normal(Z * UNITS / 2)", "noise: scale"),
    (
        "grid.values(rating_range, UNITS)",
        "grid.values(rating_range, 2 * UNITS)",
        "sensitivity: largest step",
    ),
    (
        "grid.in_units(response)",
        "grid.in_units(query(state, data, None)[0])",
        "post-processing",
    ),
    ("noise_multiplier=Z", "noise_multiplier=2 * Z", "privacy loss: δ = 0.01"),
]


def run(capsys, *words):
    code = cli.main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def verdicts(out):
    return {one["audit"]: one["verdict"] for one in json.loads(out)["findings"]}


@pytest.mark.seconds
def test_nothing_of_the_example_is_violated(capsys):
    Path("item_means.py").write_text(EXAMPLE)
    code, out, err = run(capsys, *ONE_STEP)
    assert code == 0, err
    found = verdicts(out)
    assert "violated" not in found.values()
    for _, _, finding in MISTAKES:
        assert found[finding] == "consistent"


@pytest.mark.parametrize("data", [[*RANGE, "mine.csv"], ["synthetic-40x20x300"]])
def test_it_is_tried_on_ratings_that_are_named(capsys, data):
    Path("item_means.py").write_text(EXAMPLE)
    code, out, err = run(capsys, *ONE_STEP, *data, "--only", "sensitivity")
    assert code == 0, err
    assert set(verdicts(out).values()) == {"consistent"}


@pytest.mark.seconds
@pytest.mark.parametrize(("was", "becomes", "finding"), MISTAKES)
def test_a_mistake_of_the_page_is_violated(capsys, was, becomes, finding):
    assert f"`{becomes}`" in PAGE
    assert f"`{finding}`" in PAGE
    assert EXAMPLE.count(was) == 1
    Path("item_means.py").write_text(EXAMPLE.replace(was, becomes))
    family = finding.split(":")[0]
    code, out, err = run(capsys, *ONE_STEP, "--only", family)
    assert code == 5, err
    assert verdicts(out)[finding] == "violated"


def test_findings_are_replayed_where_the_file_is_named_again(capsys):
    was, becomes, _ = MISTAKES[2]
    Path("item_means.py").write_text(EXAMPLE.replace(was, becomes))
    code, _, err = run(capsys, *ONE_STEP, "--only", "post-processing", "--out", "found")
    assert code == 5, err
    code, _, err = run(capsys, "audit", "--replay", "found")
    assert code == 2
    assert "a file of code that would be run" in err
    fix = re.search(r"fix: dpmf (.*)", err)[1].split()
    code, out, err = run(capsys, *fix, "--json")
    assert code == 5, err
    assert [row["verdict_now"] for row in json.loads(out)["replayed"]].count("violated") >= 1


@pytest.mark.parametrize(
    ("named", "text", "what", "fix"),
    [
        ("gone.py:mechanism", None, "no such file", "my_file.py:my_mechanism"),
        ("mine.py", "", "no name is given", "mine.py:NAME"),
        ("mine.py:", "", "no name is given", "mine.py:NAME"),
        ("mine.py:item_mean", "def item_means(): ...", "no 'item_mean'", "mine.py:item_means"),
        (
            "mine.py:a",
            "import numpi",
            "ModuleNotFoundError: No module named 'numpi'",
            "--debug",
        ),
        ("mine.py:a", "x = 1\ny = (", "SyntaxError", "mend it"),
        ("mine.py:a", "x = 1\n1 / 0\n", "mine.py:2", "mend it"),
        ("mine.py:a", "a = 3", "a is a int, no mechanism", "num_users, num_items, rating_range"),
        ("mine.py:a", "class a: ...", "a is a class", "returns one"),
        ("mine.py:a", "def a(ratings): ...", "a asks for ratings", "num_users"),
        ("mine.py:a", "def a(num_users): ...", "returns a NoneType", "a Mechanism"),
        ("mine.py:a", "def a():\n    return [][1]", "IndexError", "mend it"),
    ],
)
def test_what_is_no_mechanism_is_refused_in_a_sentence(capsys, named, text, what, fix):
    if text is not None:
        Path("mine.py").write_text(text)
    code, out, err = run(capsys, "audit", "--mechanism", named, "--quick")
    assert code == 2
    assert what in err
    assert fix in err.partition("fix:")[2]
    assert "Traceback" not in err + out


@pytest.mark.parametrize(
    ("was", "becomes", "part"),
    [
        ("(), ()), Info(jnp.float32(0), jnp.float32(0))", "(), ())", "query"),
        (
            "state._replace(public=Factors(center=jnp.clip(mean, on.low, on.high)))",
            "mean",
            "update",
        ),
        ("Release(center=state.public.center)", "state.public", "release"),
        ("return accounting.priced(", "return dict(", "guarantee"),
        ("noise=whole.rounded_normal(Z * UNITS)", "noise=None", "noise"),
        ("step=jnp.int32(0)", "step=0.0", "init"),
    ],
)
def test_a_part_that_breaks_the_protocol_is_named(capsys, was, becomes, part):
    assert was in EXAMPLE
    Path("item_means.py").write_text(EXAMPLE.replace(was, becomes))
    code, _, err = run(capsys, *ONE_STEP)
    assert code == 2
    assert f"the mechanism's {part} " in err
    assert f"fix: {part}: " in err


def test_only_an_audit_runs_a_file(capsys):
    Path("item_means.py").write_text("raise SystemExit('it ran')")
    code, _, err = run(capsys, "fit", "mine.csv", "--mechanism", NAMED)
    assert code == 2
    assert "`dpmf audit` alone takes" in err


def test_a_mechanism_a_spec_and_a_function_of_public_sizes_are_taken(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        EXAMPLE
        + "\nmade = item_means(20, (1.0, 5.0))\n"
        + "def of_all(**sizes):\n    return item_means(sizes['num_items'], sizes['rating_range'])\n"
        + "from dpmf_jax.mechanisms import table\nspec = table()['user-means']\n"
        + "class Call:\n    def __call__(self, num_items, rating_range, *, z=1.0):\n"
        + "        return item_means(num_items, rating_range)\ncall = Call()\n"
    )
    sizes = {"steps": 2, "num_users": 9, "num_items": 20, "rating_range": [1.0, 5.0]}
    for name in ("item_means", "made", "of_all", "call"):
        [(made, steps)] = mechanism_file.declared(f"{path}:{name}").phases(sizes, None)
        assert (steps, made.guarantee(2).mechanism) == (2, "item means")
    assert mechanism_file.declared(f"{path}:spec").unit == "rating value"
    assert mechanism_file.declared("als").name == "als"
    with pytest.raises(KeyError):
        mechanism_file.declared("nothing")


def test_a_file_that_refuses_itself_speaks_for_itself(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from dpmf_jax.errors import UsageError\nraise UsageError('not today', fix='tomorrow')\n"
    )
    with pytest.raises(UsageError, match="not today"):
        mechanism_file.declared(f"{path}:a")
