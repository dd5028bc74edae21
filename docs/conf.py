"""How the pages become a site: `make docs`. Nothing is fetched, while it is made or looked at.

Sphinx, since docstrings are in reach of it; MyST, since the pages are markdown; MyST-NB, since the
tutorials show what their code prints, and a build fails where it does not run.
"""

import ast
import os
import re
import sys
import tempfile
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
# What the tutorials release is nobody's, and is entered in no ledger that anybody keeps.
os.environ["DPMF_LEDGER"] = str(Path(tempfile.mkdtemp()) / "ledger.jsonl")

project = "dpmf_jax"
copyright = "the authors of dpmf_jax; Apache-2.0"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    *("docs/**.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md"),
    *("experiments/DEFAULTS.md", "experiments/bench/RESULTS.md"),
]
exclude_patterns = ["docs/_build/**"]

myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_in_temp = True
nb_merge_streams = True

autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
default_role = "code"

html_theme = "furo"
html_title = "dpmf_jax"
html_static_path = ["_static"]
html_css_files = ["wrap.css"]


ENTRY = re.compile(r"([A-Za-z_][\w, ]*): (?=\S)")  # "name: what it is", in a list of such
SECTIONS = ("Args:", "Attributes:", "Raises:", "Returns:", "Yields:")


def readable(app, what, name, obj, options, lines):
    """Docstrings are written for `help`: what they set apart by indentation alone is told apart
    here as Sphinx wants it. Tables and examples stay as they are.
    """
    del app, what, name, obj, options
    told, block, in_section = [], [], False
    for line in [*lines, ""]:
        if line.strip():
            block.append(line)
            continue
        in_section = _tell(told, block, in_section)
        told.append("")
        block = []
    lines[:] = told


def _tell(told, block, in_section):
    """Appends the lines of one paragraph; whether a section goes on behind it."""
    block = [re.sub(r"(`[^`]+`)(?=\w)", r"\1\\ ", line) for line in block]
    if not block:
        return in_section
    indented = block[0].startswith(" ")
    if block[0].strip() in SECTIONS or (in_section and indented):
        told += block
        return True
    if block[0].startswith("|") or indented:
        told += [f".. code-block:: {_language(block)}", "", *(f"   {line}" for line in block)]
    elif len(block) > 1 and ENTRY.match(block[0]) and any(line[0] == " " for line in block):
        told += [line if line[0] == " " else ENTRY.sub(r":\1: ", line, count=1) for line in block]
    else:
        told += block
    return False


def _language(block):
    try:
        ast.parse(textwrap.dedent("\n".join(block)))
    except SyntaxError:
        return "text"
    return "python"


def setup(app):
    app.connect("autodoc-process-docstring", readable, priority=400)  # before napoleon's
