"""The shape of the house: which floor may import which, what is imported when, and what a tracked
file may not hold.
"""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.cases import CHECKOUT

PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))

# Each floor and the floors below it.
BELOW = {
    "accounting": set(),
    "dpmf_jax": {"accounting"},
    "audits": {"accounting", "dpmf_jax"},
    "experiments": {"accounting", "dpmf_jax", "audits"},
}
# Import names that differ from the name of the package that brings them.
PACKAGE_OF = {
    "surprise": "scikit-surprise",
    "dp_accounting": "dp-accounting",
    "sklearn": "scikit-learn",
}
# Modules that are nothing without an extra's packages, and the extra.
OF_AN_EXTRA = {"dpmf_jax/training/estimator.py": "sklearn"}
# Read without jax: ratings are checked before an accelerator is touched.
WITHOUT_JAX = [
    "errors",
    "models.files",
    "data.ratings",
    "data.text",
    "data.datasets",
    "data.lifelike",
    "data.synthetic",
    "data.splits",
]


def sources(folder: str) -> list[Path]:
    return sorted((CHECKOUT / folder).rglob("*.py"))


def imported(tree: ast.AST, *, at_module_level: bool = False) -> set[str]:
    """Top-level names of what a file imports, inside functions too unless ``at_module_level``."""
    found = set()
    todo = list(ast.iter_child_nodes(tree))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." if node.level else (node.module or "").partition(".")[0])
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if not (at_module_level and (is_function or _is_type_checking(node))):
            todo += ast.iter_child_nodes(node)
    return found


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def parsed(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout: which files are tracked is not known")
    paths = [CHECKOUT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


@pytest.mark.parametrize("floor", BELOW)
def test_imports_only_go_down(floor):
    above = {*BELOW, "tests"} - BELOW[floor] - {floor}
    wrong = {
        str(path): found for path in sources(floor) if (found := imported(parsed(path)) & above)
    }
    assert not wrong


def modules() -> dict[str, Path]:
    """Every module of the four floors, by its dotted name."""
    found = {}
    for floor in BELOW:
        for path in sources(floor):
            name = ".".join(path.relative_to(CHECKOUT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def arrows() -> dict[str, set[str]]:
    """What each module imports of ours, inside functions and for type checkers too."""
    known = modules()
    found = {}
    for name, path in known.items():
        wanted = set()
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                wanted |= {one if one in known else str(node.module) for one in full}
        found[name] = wanted & set(known) - {name}
    return found


def circles(graph: dict[str, set[str]]) -> list[str]:
    """What is left when everything that imports nothing of what is left is taken away, again and
    again.
    """
    left = dict(graph)
    while free := [name for name, wanted in left.items() if not wanted & set(left)]:
        for name in free:
            del left[name]
    return sorted(left)


def room(name: str) -> str:
    """The package of a module: a family of mechanisms and a paper are rooms of their own, as is a
    file on its floor.
    """
    parts = name.split(".")
    deep = parts[:2] in (["dpmf_jax", "mechanisms"], ["experiments", "reproduce"])
    return ".".join(parts[: 3 if deep else 2])


def test_no_module_and_no_room_imports_itself_by_way_of_others():
    graph = arrows()
    assert not circles(graph)
    rooms: dict[str, set[str]] = {}
    for name, wanted in graph.items():
        rooms.setdefault(room(name), set()).update(
            room(one) for one in wanted if room(one) != room(name)
        )
    public = {
        "accounting",
        "audits",
        "dpmf_jax",
        "experiments",
    }  # a floor's own file offers what is below it
    assert not circles(
        {name: wanted - public for name, wanted in rooms.items() if name not in public}
    )


# Each room of dpmf_jax and the rooms that it may import; `errors` is for all.
MAY_IMPORT = {
    "installed": "",
    "errors": "",
    "devices": "",
    "noise": "devices",
    "protocol": "noise devices",
    "parts": "noise devices protocol",
    "data": "noise devices",
    "layout": "noise devices data",
    "kernels": "noise devices data layout protocol",
    "mechanisms": "noise devices data layout kernels protocol",
    "models": "noise devices data kernels mechanisms protocol",
    "training": "noise devices data layout kernels mechanisms models parts protocol",
}
# The only families of mechanisms that may import another.
MAY_IMPORT_FAMILY = {("sketch", "sampled"), ("federated", "objective"), ("als", "federated")}


def between(floor: str) -> set[tuple[str, str, str]]:
    """(room, room, how) for each import from one room of the floor into another."""
    found = set()
    for name, wanted in arrows().items():
        for one in wanted:
            parts, others = name.split("."), one.split(".")
            if (
                parts[0] == others[0] == floor
                and min(len(parts), len(others)) > 1
                and parts[1] != others[1]
            ):
                found.add((parts[1], others[1], f"{name} -> {one}"))
    return found


def test_rooms_import_what_they_may():
    wrong = [
        how
        for one, other, how in between("dpmf_jax")
        if other not in ("errors", *MAY_IMPORT[one].split())
    ]
    assert not wrong


def test_families_of_mechanisms_stand_alone():
    found = set()
    for name, wanted in arrows().items():
        for one in wanted:
            parts, others = name.split("."), one.split(".")
            both = (
                parts[:2] == others[:2] == ["dpmf_jax", "mechanisms"]
                and min(len(parts), len(others)) > 3
            )
            if both and parts[2] != others[2]:
                found.add((parts[2], others[2]))
    assert found <= MAY_IMPORT_FAMILY


@pytest.mark.parametrize("outside", ["audits.", "dpmf_jax.models."])
def test_audits_and_models_import_no_family_of_mechanisms(outside):
    """They take any mechanism, and what one declares of itself from the table."""
    families = {path.parent.name for path in CHECKOUT.glob("dpmf_jax/mechanisms/*/__init__.py")}
    assert families
    assert not [
        f"{name} -> {one}"
        for name, wanted in arrows().items()
        for one in wanted
        if name.startswith(outside)
        and one.split(".")[:2] == ["dpmf_jax", "mechanisms"]
        and families & set(one.split(".")[2:3])
    ]


def test_audits_of_one_kind_import_no_other_kind():
    kinds = {"mechanism", "program", "release"}
    assert not [
        how
        for one, other, how in between("audits")
        if other in kinds or one not in kinds | {"search", "transcript"}
    ]


def test_no_paper_imports_another():
    paper = re.compile(r"experiments[.]reproduce[.](paper\d+)")
    wrong = []
    for name, wanted in arrows().items():
        for one in wanted:
            here, there = paper.match(name), paper.match(one)
            shared = (
                name.startswith("experiments.reproduce.")
                and not here
                and not name.endswith(".command")
            )
            if there and (shared or (here and here[1] != there[1])):
                wrong.append(f"{name} -> {one}")
    assert not wrong


def test_what_commands_share_imports_no_command():
    assert not [how for one, other, how in between("experiments") if one == "cli"]


def test_accounting_knows_no_jax():
    jax_family = {"jax", "jaxlib", "optax", "chex", "jaxtyping"}
    assert not {
        str(path): found
        for path in sources("accounting")
        if (found := imported(parsed(path)) & jax_family)
    }


@pytest.mark.parametrize("floor", BELOW)
def test_imports_are_absolute(floor):
    assert not [str(path) for path in sources(floor) if "." in imported(parsed(path))]


def declared(extra: str | None = None) -> set[str]:
    """Import names of the project's own dependencies, or of one of its extras."""
    rows = (
        PROJECT["project"]["optional-dependencies"][extra]
        if extra
        else PROJECT["project"]["dependencies"]
    )
    return {canonicalize_name(Requirement(row).name) for row in rows}


@pytest.mark.parametrize("floor", BELOW)
def test_every_import_is_declared(floor):
    optional = declared("report") | declared("bench") | declared("lenskit")
    for path in sources(floor):
        tree = parsed(path)
        extra = OF_AN_EXTRA.get(str(path.relative_to(CHECKOUT)))
        own = declared(extra) if extra else set()
        for names, allowed in (
            (imported(tree, at_module_level=True), declared() | own),
            (imported(tree), declared() | optional | own),
        ):
            foreign = names - set(sys.stdlib_module_names) - set(BELOW) - {"."}
            unknown = {
                name
                for name in foreign
                if canonicalize_name(PACKAGE_OF.get(name, name)) not in allowed
            }
            assert not unknown, f"{path.name} imports {unknown}"


def test_the_packages_are_the_four_floors():
    found = {path.parent.name for path in CHECKOUT.glob("*/__init__.py")}
    assert found - {"tests"} == set(BELOW)
    include = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {pattern.rstrip("*") for pattern in include} == set(BELOW)
    for floor in BELOW:
        assert (CHECKOUT / floor / "py.typed").is_file()
        assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"][floor]
        # A folder without __init__.py would be left out of the wheel.
        assert not [path for path in sources(floor) if not (path.parent / "__init__.py").is_file()]


def test_files_are_named_for_one_idea():
    vague = re.compile(r"_?(utils?|helpers?|common|misc|tools)(_.*|\d*)?")
    assert not [
        str(path)
        for floor in [*BELOW, "tests"]
        for path in sources(floor)
        if vague.fullmatch(path.stem)
    ]


def test_tracked_files_name_no_registry_and_no_machine():
    registry = (
        r"\b(?:pypi|npmjs|pythonhosted|conda|anaconda)[.](?:org|com)\b|download[.]pytorch[.]org"
    )
    machine = r"(?<![\w.~)\]/-])/(?:home|root|work|Users|mnt)/[A-Za-z]"
    private_key = r"-----BEGIN [A-Z ]*PRIVATE KEY"
    pattern = re.compile(f"{registry}|{machine}|{private_key}")
    found = []
    for path in tracked():
        text = path.read_bytes().decode("utf-8", errors="replace")
        found += [
            f"{path.relative_to(CHECKOUT)}: {match.group()}" for match in pattern.finditer(text)
        ]
    assert not found


def test_tracked_files_are_small():
    assert not [str(path) for path in tracked() if path.stat().st_size > 1 << 20]


def test_every_dependency_has_a_tested_version():
    pinned = {}
    for line in (CHECKOUT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            row = Requirement(line)
            pinned.setdefault(canonicalize_name(row.name), []).append(row)
            assert re.fullmatch(r"==[\w.]+", str(row.specifier)), line
    extras = PROJECT["project"]["optional-dependencies"]
    others = {"cuda", "lenskit"}  # which cannot stand beside the tested versions
    wanted = declared().union(*(declared(extra) for extra in extras if extra not in others))
    assert wanted <= set(pinned)
    for version in ("3.11", "3.12", "3.13"):
        environment = {"python_version": version, "python_full_version": f"{version}.0"}
        for name, rows in pinned.items():
            apply = [row for row in rows if row.marker is None or row.marker.evaluate(environment)]
            assert len(apply) == 1, f"{name} on Python {version}"


def test_the_test_extra_can_draw_reports():
    assert declared("report") <= declared("test")


@pytest.mark.parametrize("name", WITHOUT_JAX)
def test_ratings_are_read_without_jax(name):
    assert (CHECKOUT / "dpmf_jax" / f"{name.replace('.', '/')}.py").is_file()
    heavy = python(
        f"import sys, dpmf_jax.{name}; print(*{{'jax', 'optax', 'scipy.stats'}} & set(sys.modules))"
    )
    assert heavy.split() == []


def test_importing_the_package_is_light():
    assert (
        python(
            "import sys, dpmf_jax; print(*{'jax', 'optax', 'scipy', 'pyarrow'} & set(sys.modules))"
        ).split()
        == []
    )


def test_accounting_imports_its_heavy_parts_where_they_are_used():
    loaded = python(
        "import sys, accounting; print(*{'dp_accounting', 'scipy.stats', 'jax'} & set(sys.modules))"
    )
    assert loaded.split() == []


def test_help_starts_nothing_heavy():
    code = """
import sys
from experiments.cli import main as cli
code = cli.main(["--help"])
print("loaded:", *{"jax", "numpy", "scipy", "pyarrow", "rich", "tyro", "dp_accounting"} & set(
    sys.modules))
sys.exit(code)
"""
    said = python(code)
    assert said.startswith("usage: dpmf")
    assert said.rstrip().endswith("loaded:")


def test_every_command_has_its_program_and_imports_jax_only_to_run():
    code = """
import dataclasses, importlib, sys
from experiments.cli import main as cli
for name, (_, program) in cli.COMMANDS.items():
    module = importlib.import_module(program.split(":")[0])
    command = getattr(module, program.split(":")[1])
    assert dataclasses.is_dataclass(command) and command.__dataclass_params__.frozen, name
    assert callable(module.run), name
    assert command.__doc__, name
print(*{"jax", "dp_accounting", "matplotlib", "torch"} & set(sys.modules))
"""
    assert python(code).split() == []
