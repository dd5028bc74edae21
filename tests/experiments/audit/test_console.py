"""What `dpmf audit` prints on a terminal."""

import io

import rich.console

from experiments.audit import console
from tests.cases.audit_report import document, finding, trial


def printed(whole):
    out = io.StringIO()
    rich.console.Console(file=out, width=100).print(console.render(whole | {"written": []}))
    return out.getvalue()


def test_what_it_came_to_stands_first_and_what_does_not_apply_in_one_line():
    whole = document(
        trial(
            [
                finding("violated", audit="noise: scale"),
                finding("not applicable", audit="coins: rate"),
                finding("consistent", audit="init"),
                finding("not applicable", audit="user price"),
            ]
        )
    )
    first, *rest = printed(whole).splitlines()
    assert first.startswith("The claim does not hold: 1 of 2 audits found")
    table, _, below = "\n".join(rest).partition("for the curator")
    assert "noise: scale" in table
    assert "power: anything above" in table
    assert "coins: rate" not in table
    assert "not applicable, 2: coins: rate; user price" in below
