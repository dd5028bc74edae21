"""Records of audits: of the schema, of what may be shown, and one a mechanism."""

import json

import jsonschema
import pytest

from experiments.audit import registry
from experiments.cli import main as cli
from tests.cases.audit_report import PERSON, SECRET, document, finding, trial

TELLING = "privacy loss: δ = 0.01"


def of(found, mechanism="m", **change):
    return trial([{**one, "mechanism": mechanism} for one in found], mechanism=mechanism, **change)


TWO = document(
    of([finding(), finding("violated", TELLING)], label="m, as published"),
    of([finding("not applicable")], label="m, sound"),
    of(
        [finding("inconclusive"), finding(audit=TELLING)],
        "other: of mine",
        label="other: of mine",
        status="none",
    ),
)


@pytest.fixture(scope="module")
def checker():
    jsonschema.Draft202012Validator.check_schema(registry.schema())
    return jsonschema.Draft202012Validator(registry.schema())


def test_a_mechanism_has_one_record_with_all_of_its_claims(checker):
    found = registry.records(TWO)
    assert list(found) == ["m", "other: of mine"]
    for name, record in found.items():
        checker.validate(record)
        assert record["mechanism"] == name
    published, sound = found["m"]["claims"]
    assert (published["label"], sound["label"]) == ("m, as published", "m, sound")
    assert (published["verdict"], sound["verdict"]) == ("violated", "inconclusive")
    assert [len(claim["findings"]) for claim in (published, sound)] == [2, 1]
    assert found["m"]["sentence"] == "Of 2 claims: 1 found false, 1 left open."
    assert found["m"]["counts"] == {
        "violated": 1,
        "consistent": 1,
        "inconclusive": 0,
        "not applicable": 1,
    }
    assert published["promise"]["epsilon"] == TWO["trials"][0]["guarantee"]["epsilon"]
    assert sound["findings"][0]["why"] == "it is so"


def test_without_a_promise_there_is_no_epsilon(checker):
    record = registry.records(TWO)["other: of mine"]
    (claim,) = record["claims"]
    assert claim["promise"]["epsilon"] is None
    assert claim["promise"]["status"] == "none"
    assert record["sentence"] == "Nothing is promised, so there is no claim to break."


def test_a_record_holds_nothing_that_was_measured(tmp_path):
    """Nor does any file of the registry; the power of one family is a sentence of its design."""
    for path in map(str, registry.write(tmp_path, TWO)):
        with open(path) as file:
            text = file.read().replace(f"anything above {SECRET} would be seen", "")
        assert str(SECRET) not in text
        assert PERSON not in text
        assert "c0ffee" not in text


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"claims": []},
        {"counts": {}},
        {"rmse": SECRET},
        {"sentence": None},
    ],
)
def test_the_schema_refuses_other_records(checker, change):
    record = registry.records(TWO)["m"]
    assert checker.is_valid(record)
    assert not checker.is_valid(record | change)


def test_files_are_named_by_mechanism_and_listed_with_those_of_earlier_audits(tmp_path):
    registry.write(tmp_path, TWO)
    later = document(of([finding()], "third", label="third, alone"))
    registry.write(tmp_path, later)
    (tmp_path / "notes.json").write_text("[1]")
    (tmp_path / "of-others.json").write_text('{"version": 1}')
    (tmp_path / "broken.json").write_text("{")
    registry.write(tmp_path, later)
    assert {path.name for path in tmp_path.glob("*.md")} == {
        *("README.md", "m.md", "other-of-mine.md", "third.md"),
    }
    assert json.loads((tmp_path / "schema.json").read_bytes()) == registry.schema()
    rows = [
        line for line in (tmp_path / "README.md").read_text().splitlines() if "[record]" in line
    ]
    assert [row.split(" | ")[0].strip("| ") for row in rows] == [
        *("m, as published", "m, sound", "other: of mine", "third, alone"),
    ]
    assert "(third.json)" in rows[-1]
    page = (tmp_path / "m.md").read_text()
    assert page.startswith("# Audit of m\n")
    assert "m, sound" in page
    assert "other: of mine" not in page


def test_the_commit_of_a_changed_checkout_says_so():
    assert registry._short("0123456789abcdef-dirty") == "0123456789ab-dirty"
    assert registry._short(None) == "unknown"


def test_the_command_writes_records(tmp_path, capsys, checker, quick_compilation):
    folder = tmp_path / "registry"
    words = ["audit", "synthetic-20x15x120", "--mechanism", "user-means", "--quick"]
    words += ["--only", "sensitivity"]
    assert cli.main([*words, "--registry", str(folder)]) == 0
    checker.validate(json.loads((folder / "user-means.json").read_bytes()))
    assert f"written: {folder / 'user-means.json'}" in capsys.readouterr().out
    assert cli.main([*words, "--registry", str(folder / "README.md")]) == 2
    assert "give --registry the name of a folder" in capsys.readouterr().err
