"""`dpmf epsilon model`: a saved model, priced again."""

import json
from pathlib import Path

import pytest

from accounting import digits, gaussian
from tests.cases.epsilon import BAD_NUMBERS, rows_of


def test_a_saved_model_is_priced_again(models, priced, dpmf):
    found = priced("model", models["proved"], "--user-ratings", "3")
    for name, value in gaussian.accountants(10.0, 20, 1e-5).items():
        assert found[name] == pytest.approx(value, rel=1e-12)
    assert found["rho"] == pytest.approx(0.1)
    assert found["user"]["rho"] == pytest.approx(0.9)
    assert found["notes"] == []
    code, out, _ = dpmf("model", models["proved"])
    assert code == 0
    assert "PRIVACY STATEMENT: gaussian-public-items, 20 steps" in out
    assert rows_of(out).keys() == {"basic", "closed_form", "rdp", "pld", "exact"}


def test_a_saved_model_at_another_delta(models, priced):
    found, saved = (
        priced("model", models["proved"], "--delta", "1e-8"),
        priced("model", models["proved"]),
    )
    assert found["exact"] == pytest.approx(gaussian.epsilon_exact(0.1, 1e-8))
    assert (
        found["epsilon"]
        == digits.round_up(found["exact"])
        > saved["epsilon"]
        == found["saved_epsilon"]
    )
    assert "δ = 1e-08" in found["statement"]


def test_a_pure_model_has_a_price_without_a_delta(models, priced, dpmf, refused):
    found = priced("model", models["pure"], "--delta", "0")
    assert (found["basic"], found["epsilon"], found["delta"]) == (0.5, 0.5, 0.0)
    assert "δ = 0" in found["statement"]
    code, out, _ = dpmf("model", models["pure"], "--delta", "0")
    assert code == 0
    saved = next(line for line in out.splitlines() if line.startswith("saved with"))
    assert saved.endswith(" at δ = 1.23457e-05")
    assert "no finite ε at δ = 0" in refused("model", models["proved"], "--delta", "0")


def test_a_model_without_a_guarantee_has_no_price(models, priced, dpmf):
    found = priced("model", models["none"], "--delta", "1e-3", "--user-ratings", "3")
    assert (found["epsilon"], found["status"], found["accountants"], found["user"]) == (
        "inf",
        "none",
        {},
        None,
    )
    code, out, _ = dpmf("model", models["none"])
    assert code == 0
    assert "NO PRIVACY GUARANTEE" in out


def damaged(folder: Path, damage: str) -> None:
    path = folder / "model.json"
    content = json.loads(path.read_text())
    match damage:
        case "no model.json":
            path.unlink()
        case "torn":
            path.write_text(path.read_text()[:-20])
        case "edited":
            path.write_text(path.read_text().replace('"num_steps": 20', '"num_steps": 2'))
        case "another program's":
            path.write_text('{"model": "resnet"}')
        case "a list":
            path.write_text("[]")
        case "unfinished":
            path.unlink()
            (folder / "private").mkdir()
            (folder / "private" / "run.json").write_text("{}")
            (folder / "PRIVACY.md").unlink()  # written just before model.json
        case "release gone":
            (folder / "release.safetensors").unlink()
        case "release torn":
            (folder / "release.safetensors").write_bytes(
                (folder / "release.safetensors").read_bytes()[:-1]
            )
        case _:
            import hashlib

            content.pop("sha256")
            content.update(
                {"a newer format": {"format": 99}, "no guarantee": {"guarantee": {}}}[damage]
            )
            digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
            path.write_text(json.dumps({**content, "sha256": digest}))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("no model.json", "model.json is missing"),
        ("torn", "model.json cannot be read"),
        ("edited", "changed after it was saved"),
        ("another program's", "changed after it was saved"),
        ("a list", "not a JSON object"),
        ("unfinished", "not finished"),
        ("release gone", "release.safetensors cannot be read"),
        ("release torn", "not the file that was saved"),
        ("a newer format", "has format 99"),
        ("no guarantee", "does not describe a model: missing keys"),
    ],
)
def test_a_folder_that_is_no_whole_model_is_refused(models, refused, tmp_path, damage, told):
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(models["proved"], folder)
    damaged(folder, damage)
    assert told in refused("model", folder, code=3)


def test_no_folder_and_wrong_numbers_are_refused(models, refused):
    assert "no such model folder" in refused("model", "nowhere", code=3)
    assert "no such model folder" in refused("model", models["proved"] / "model.json", code=3)
    for value in (*BAD_NUMBERS, "1"):
        assert "--delta" in refused("model", models["proved"], f"--delta={value}")
    assert "--user-ratings" in refused("model", models["proved"], "--user-ratings=0")
