"""The audit's HTML page: hostile names are inert, nothing is asked for, and a browser neither
complains nor scrolls.
"""

import itertools
import re
from html.parser import HTMLParser

import pytest

from experiments.audit import page as audit_page
from experiments.audit import report as audit_report
from experiments.audit import view as audit_view
from tests.cases import browser
from tests.cases.audit_report import CAUGHT, VERDICTS, document, finding, trial

HOSTILE = (
    """<script>alert(1)</script>"'><img src=https://evil.example/p.png onerror=alert(2)>{{ 7*7 }}"""
)
ROC = {"fpr": [0.0, 0.01, 0.1, 1.0], "tpr": [0.0, 0.05, 0.4, 1.0]}
LONG = "a-name-without-any-place-to-break-" * 6


def page(whole, out="audit"):
    return audit_page.html(whole["title"], audit_view.sections(whole, out))


def everything(name="some ratings"):
    """Two trials with every verdict, both pictures and a self-test."""
    found = [finding(verdict, f"membership: {verdict}", claim=name) for verdict in VERDICTS]
    found += [
        finding(audit="privacy loss: δ = 0.01", measured=2.5),
        finding(audit="dice: loaded", details={"roc": ROC}),
    ]
    found += [finding(audit="membership: LiRA", details={"roc": ROC})]
    other = trial([finding()], label=f"two {name}", status="none")
    return document(trial(found, label=name, data=name), other, self_test=[CAUGHT | {"bug": name}])


class Tags(HTMLParser):
    """Every tag with its attributes, and every piece of text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.open, self.wrong = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        self.texts.append(data)


def test_hostile_names_are_text():
    told = Tags(page(everything(HOSTILE), HOSTILE))
    assert not {"script", "img", "iframe", "object"} & {tag for tag, _ in told.tags}
    assert not [name for _, attributes in told.tags for name in attributes if name.startswith("on")]
    assert HOSTILE in "".join(told.texts)


def test_the_page_is_well_formed_and_asks_for_nothing():
    text = page(everything())
    told = Tags(text)
    assert (told.wrong, told.open) == ([], [])
    links = [
        a[name]
        for _, a in told.tags
        for name in ("href", "src", "action", "data", "srcset")
        if name in a
    ]
    ids = {attributes["id"] for _, attributes in told.tags if "id" in attributes}
    assert all(link.removeprefix("#") in ids or link == "data:," for link in links)
    assert "url(" not in text
    assert "@import" not in text
    assert "http://" not in text
    assert "https://" not in text


def test_headings_go_down_one_by_one_and_pictures_have_words():
    told = Tags(page(everything()))
    levels = [int(tag[1]) for tag, _ in told.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    pictures = [attributes for tag, attributes in told.tags if tag == "svg"]
    assert all(one.get("aria-hidden") == "true" or one["aria-label"] for one in pictures)
    assert sum("aria-label" in one for one in pictures) == 3
    ids = [attributes["id"] for _, attributes in told.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("verdict", VERDICTS)
def test_each_verdict_is_said_in_words_and_colour(verdict):
    text = page(document(trial([finding(verdict)])))
    headline = verdict if verdict != "not applicable" else "inconclusive"
    assert f'<div class="verdict {headline}">' in text
    assert f'<span class="badge {verdict.replace(" ", "-")}">{verdict}</span>' in text
    others = set(VERDICTS) - {verdict, headline}
    assert not [other for other in others if f">{other}</span>" in text]


def test_a_public_page_shows_the_verdict_and_no_number_of_the_ratings():
    text = page(audit_report.public(everything()))
    assert '<span class="badge violated">violated</span>' in text
    assert "measured" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL).replace(
        "and measured lower", ""
    )


# ---- in a browser


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if browser.find() is None:
        # The page is looked at as a browser shows it; without one, the other tests still hold its
        # text and its links.
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with browser.Browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


WIDEST = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
# Elements that reach beyond the window, but for what is kept for screen readers alone.
BEYOND = """[...document.querySelectorAll('body *')].filter(e => !e.closest('thead, svg') &&
  e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.tagName).join()"""


def shown(chromium, tmp_path, text, **how):
    path = tmp_path / "report.html"
    path.write_text(text, encoding="utf-8")
    chromium.open(path, **how)
    assert chromium.complaints() == []
    assert [url for url in chromium.requests() if url not in (path.as_uri(), "data:,")] == []


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_browser_shows_each_verdict_without_a_complaint_or_a_request(chromium, tmp_path, verdict):
    shown(chromium, tmp_path, page(document(trial([finding(verdict)]))), width=390)
    assert chromium.value(WIDEST) <= 390
    chromium.value("[...document.querySelectorAll('details')].map(one => one.open = true).length")
    assert chromium.value(WIDEST) <= 390
    assert verdict in chromium.value("document.querySelector('article').innerText")


@pytest.mark.one_case
@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("name", [HOSTILE, LONG])
def test_nothing_runs_and_nothing_scrolls_sideways_whatever_the_names(
    chromium, tmp_path, name, width
):
    shown(chromium, tmp_path, page(everything(name)), width=width)
    assert chromium.value(WIDEST) <= width
    assert chromium.value(BEYOND) == ""
    assert chromium.value("document.scripts.length + document.images.length") == 0
    assert name in chromium.value("document.body.textContent")


# Of two colours as rgb(...), by the rule of WCAG 2.
CONTRAST = """(() => {
  const light = c => c.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => { for (; e; e = e.parentElement) {
    const c = getComputedStyle(e).backgroundColor; if (c !== 'rgba(0, 0, 0, 0)') return c; } };
  const read = 'h1, p, th, td, a, dt, dd, .badge, figcaption, li, pre';
  return Math.min(...[...document.querySelectorAll(read)].map(e => {
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05); }));
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_in_light_and_dark(chromium, tmp_path, dark):
    shown(chromium, tmp_path, page(everything()), width=390, dark=dark)
    assert chromium.value("getComputedStyle(document.body).backgroundColor") == (
        "rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)"
    )
    assert chromium.value(CONTRAST) >= 4.5


@pytest.mark.seconds
def test_on_paper_there_is_no_navigation_and_every_word_of_the_findings(chromium, tmp_path):
    shown(chromium, tmp_path, page(everything()), width=800)
    chromium.ask("Emulation.setEmulatedMedia", media="print")
    assert chromium.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert (
        chromium.value("[...document.querySelectorAll('article')].every(e => e.offsetHeight > 0)")
        is True
    )
    chromium.ask("Emulation.setEmulatedMedia", media="")
