"""Another project's package of the same name stops this one before it half works."""

import shutil
import subprocess
import sys

import pytest

from dpmf_jax.installed import ForeignPackage, refuse_others
from tests.cases import CHECKOUT

NEEDED = ("accounting", "audits", "experiments")
DPMF = "from experiments.cli.main import entry; import sys; sys.argv = ['dpmf', '--help']; entry()"


def python(code, *path, cwd):
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={"PYTHONPATH": ":".join(map(str, path))},
        capture_output=True,
        text=True,
        check=False,
    )


def test_our_own_packages_are_not_refused():
    refuse_others("accounting", "audits", "experiments")


@pytest.mark.parametrize("name", ["accounting", "audits"])
def test_a_package_that_is_found_first_is_named(tmp_path, name):
    (tmp_path / name).mkdir()
    theirs = tmp_path / name / "__init__.py"
    theirs.write_text("")
    code = "import dpmf_jax" if name == "accounting" else DPMF
    done = python(code, tmp_path, CHECKOUT, cwd=tmp_path)
    assert done.returncode in (1, 4)
    assert f"dpmf-jax needs its own package {name}, and Python finds another one" in done.stderr
    assert str(theirs) in done.stderr
    assert "python -m venv" in done.stderr


def test_a_folder_of_the_same_name_without_a_package_is_in_nobodys_way(tmp_path):
    for name in NEEDED:
        (tmp_path / name).mkdir()
    done = python("import dpmf_jax; print(dpmf_jax.__version__)", tmp_path, CHECKOUT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NEEDED)
def test_a_package_that_was_installed_over_ours_is_named(tmp_path, name):
    site = tmp_path / "site"
    for one in ("dpmf_jax", *NEEDED):
        shutil.copytree(
            CHECKOUT / one, site / one, ignore=shutil.ignore_patterns("__pycache__", "points")
        )
    (site / name / "__init__.py").write_text('"""Another project."""\n')
    code = "import dpmf_jax" if name == "accounting" else DPMF
    done = python(code, site, cwd=tmp_path)
    assert done.returncode in (1, 4)
    assert f"{name}/__init__.py, which another project installed over it" in done.stderr
    if code == DPMF:
        assert done.returncode == 4
        assert "Traceback" not in done.stderr


def test_a_package_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr("dpmf_jax.installed.HERE", CHECKOUT / "elsewhere" / "dpmf_jax")
    with pytest.raises(ForeignPackage, match="dpmf-jax needs its own package accounting"):
        refuse_others("accounting")
    with pytest.raises(ForeignPackage, match="not installed"):
        refuse_others("no_such_package")
