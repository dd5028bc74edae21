"""The site is built as `make docs` builds it: every tutorial runs, every link leads somewhere, and
nothing is fetched by who looks at it.
"""

import re
import subprocess
import sys

import pytest

from tests.cases import CHECKOUT
from tests.cases.compilation import environment

LOADED = re.compile(r"""<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=["']([^"']+)""")
TUTORIALS = sorted(path.stem for path in (CHECKOUT / "docs" / "tutorials").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    made = subprocess.run(
        [
            *(sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going"),
            *("-c", "docs", "-d", str(folder / "trees"), ".", str(folder / "html")),
        ],
        cwd=CHECKOUT,
        env=environment(quick=True),
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-5000:]
    return folder / "html"


@pytest.mark.slow
def test_tutorials_show_what_their_code_prints(site):
    assert TUTORIALS
    for name in TUTORIALS:
        page = (site / "docs" / "tutorials" / f"{name}.html").read_text(encoding="utf-8")
        assert page.count("cell_output") >= 2
        assert "PRIVACY STATEMENT" in page or "experiment, do not release" in page
        assert "Traceback" not in page
        assert "error:" not in page


@pytest.mark.slow
def test_an_audit_says_violated_of_every_pitfall_and_of_nothing_sound(site):
    page = (site / "docs" / "pitfalls.html").read_text(encoding="utf-8")
    sound, *pitfalls = page.split('<section id="')[1:]
    outputs = [re.findall(r"cell_output.*?<pre>(.*?)</pre>", part, re.DOTALL) for part in pitfalls]
    told = [" ".join(found) for found in outputs if found]
    assert len(told) == 10
    for one in told:
        assert "violated" in one
        assert "consistent" not in one
    (first,) = re.findall(r"cell_output.*?<pre>(.*?)</pre>", sound, re.DOTALL)
    assert "consistent" in first
    assert "violated" not in first


@pytest.mark.slow
def test_nothing_is_fetched_and_what_a_page_links_to_is_there(site):
    pages = [*site.rglob("*.html")]
    assert len(pages) > 40
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for link in LOADED.findall(text):
            assert not re.match(r"(?:https?:)?//", link), (page.name, link)
        for link in re.findall(r'href="([^"#?]+\.html)', text):
            if not re.match(r"[a-z]+:", link):
                assert (page.parent / link).exists(), (page.name, link)


@pytest.mark.slow
def test_the_reference_has_what_docstrings_say(site):
    page = (site / "docs" / "api" / "dpmf_jax.html").read_text(encoding="utf-8")
    for name in ("dpmf_jax.fit", "dpmf_jax.cross_validate", "dpmf_jax.protocol.Mechanism.query"):
        assert f'id="{name}"' in page, name
    assert "declared (lowest, highest) possible rating" in page
