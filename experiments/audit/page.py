"""The sections of an audit's report as one HTML page: no script, no request, every name escaped."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.audit import pictures as audit_pictures
from experiments.audit.view import Section

TEMPLATE = "audit.html.j2"


def html(title: str, sections: Sequence[Section]) -> str:
    """The page. Needs jinja2 (extra `report`); whatever is undefined in the template is an
    error.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("experiments"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["kind"] = lambda block, name: type(block).__name__ == name
    environment.filters["slug"] = lambda verdict: verdict.replace(" ", "-")
    page = environment.get_template(TEMPLATE)
    contents = [(section.anchor, section.title) for section in sections if section.level == 2]
    return page.render(title=title, sections=sections, contents=contents, draw=audit_pictures.draw)
