"""The sections of an audit's report as one HTML page: no script, no request, every name escaped."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from experiments.audit import marks, pictures
from experiments.audit.blocks import Section

TEMPLATE = "audit.html.j2"


def html(title: str, sections: Sequence[Section]) -> str:
    """The page. Needs jinja2 and matplotlib (extra `report`).

    Raises: jinja2.UndefinedError for a name that the template does not know.
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
    numbers = itertools.count(1)
    return page.render(
        title=title,
        sections=sections,
        contents=contents,
        mark=marks.MARK,
        draw=lambda picture: pictures.svg(picture, next(numbers)),
    )
