"""What `import dpmf_jax` offers: its names, and the ten that its help begins with."""

import re
import subprocess
import sys
from importlib import metadata

import pytest

import dpmf_jax


@pytest.mark.parametrize("name", dpmf_jax.__all__)
def test_every_name_that_is_offered_is_there(name):
    assert getattr(dpmf_jax, name) is not None


def test_dir_and_all_agree():
    assert dir(dpmf_jax) == sorted(dpmf_jax.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        dpmf_jax.nothing  # noqa: B018


def test_help_begins_with_ten_names():
    assert dpmf_jax.__version__ == metadata.version("dpmf-jax")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import pydoc, dpmf_jax; print(pydoc.plain(pydoc.render_doc(dpmf_jax)))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    first = done.stdout.partition("PACKAGE CONTENTS")[0]
    named = re.findall(r"^        (\w+)  +\S", first, re.MULTILINE)
    assert len(named) == 10
    assert set(named) <= set(dpmf_jax.__all__)
