"""The table of mechanisms: what a `Spec` declares is what its mechanism is and promises."""

import dataclasses
import inspect
import subprocess
import sys
from functools import partial

import chex
import jax
import numpy as np
import pytest

from accounting import compose
from dpmf_jax import layout
from dpmf_jax.errors import UsageError
from dpmf_jax.mechanisms import table
from experiments.audit import command as audit_command
from experiments.cli import console
from experiments.cli import main as cli
from experiments.cli.main import parse
from experiments.fit import command as fit_command
from experiments.fit import mechanisms as fit_mechanisms
from experiments.fit.flags import DEFAULT, with_flags_of
from tests.cases.mechanisms import RATINGS, phases


@pytest.mark.one_case
@pytest.mark.parametrize("name", table())
def test_what_a_spec_says_is_what_the_guarantee_says(name):
    spec, (made, settings) = table()[name], phases(name)
    guarantee = compose(*(mechanism.guarantee(steps) for mechanism, steps in made))
    assert settings["mechanism"] == name
    if spec.unit is not None:
        assert guarantee.unit == spec.unit
    else:
        assert guarantee.status == "none" or "relation" in {
            field.name for field in dataclasses.fields(spec.flags)
        }
    releases = name != "non-private"
    assert (guarantee.status == "none" and releases) == (spec.unsafe is not None)
    assert spec.num_steps(settings, guarantee.steps) == made[-1][1]


@pytest.mark.parametrize("name", table())
def test_phases_are_made_again_of_the_settings_alone(name):
    made, settings = phases(name)
    again = fit_mechanisms.phases(settings, None)
    assert [steps for _, steps in again] == [steps for _, steps in made]
    for (one, steps), (other, _) in zip(made, again, strict=True):
        assert one.guarantee(steps) == other.guarantee(steps)


@pytest.mark.one_case
@pytest.mark.parametrize("name", table())
def test_a_control_is_its_mechanism_without_noise(name, quick_compilation):
    """The same start, the same release by shape, and one response whatever the noise's key."""
    mechanism, _ = phases(name)[0][-1]
    control = table()[name].control(mechanism)
    data = layout.make(RATINGS, kind="dense", num_devices=1)
    keys = jax.random.split(jax.random.key(0), 3)

    @jax.jit
    def responses(control, keys):
        state = control.init(keys[0], data, None)
        statistics, _ = control.query(state, data, control.coins(keys[0]))
        return state, statistics, [control.noise.sample(key, statistics) for key in keys[1:]]

    state, statistics, (one, two) = responses(control, keys)
    chex.assert_tree_all_finite(statistics)
    chex.assert_trees_all_equal(one, two)
    if hasattr(state.private, "perturbation"):
        assert not np.any(state.private.perturbation)

    def released(which):
        return jax.eval_shape(lambda: which.release(which.init(keys[0], data, None)))

    chex.assert_trees_all_equal(released(control), released(mechanism))


@pytest.mark.parametrize("name", table())
def test_every_flag_has_help_and_is_none_of_the_commands_own(name):
    flags = table()[name].flags
    text = "".join(
        inspect.getsource(kind) for kind in flags.__mro__ if dataclasses.is_dataclass(kind)
    )
    common = {field.name for field in dataclasses.fields(fit_command.Command)}
    for field in dataclasses.fields(flags):
        assert field.name not in common
        assert f"    {field.name}: " in text
        after = text.split(f"    {field.name}: ", 1)[1].split("\n", 1)[1]
        assert after.startswith('    """'), field.name


def test_a_mechanism_is_told_what_means_something_to_it_and_nothing_else(capsys):
    for words, told in (
        (
            ("--rounds", "3"),
            "--rounds means nothing to --mechanism als; it goes with local",
        ),
        (("--mechanism", "local", "--steps", "3"), "--steps means nothing to --mechanism local"),
        (("--mechanism=local", "--items", "a.csv"), "it goes with gaussian-public-items"),
        (("--mechanism", "locl"), "there is no mechanism 'locl'"),
        (("--mechanism",), "--mechanism needs a name"),
    ):
        assert cli.main(["fit", "synthetic", *words]) == UsageError.exit_code
        assert told in capsys.readouterr().err


def test_help_shows_a_mechanisms_own_flags(capsys):
    with pytest.raises(SystemExit):
        parse("fit", fit_command.Command, ["--mechanism", "local", "--help"])
    shown = capsys.readouterr().out
    assert "--rounds" in shown
    assert "--temperature" not in shown
    assert all(name in shown.replace("\n", " ") for name in ("gaussian-joint-noise", "langevin"))


def test_a_settings_file_names_the_mechanism_too(tmp_path):
    file = tmp_path / "fit.toml"
    file.write_text('data = "synthetic"\nmechanism = "local"\nrounds = 3\n')
    command = parse("fit", fit_command.Command, ["--config", str(file)])
    assert (command.mechanism, command.rounds) == ("local", 3)
    assert parse("fit", fit_command.Command, ["--config", str(file), "--rounds", "4"]).rounds == 4
    file.write_text('data = "synthetic"\nrounds = 3\n')
    with pytest.raises(UsageError, match=f"means nothing to --mechanism {DEFAULT}"):
        parse("fit", fit_command.Command, ["--config", str(file)])


def test_only_the_run_that_a_command_is_about_decides_its_mechanism(tmp_path):
    """Not the model that happens to lie where the output goes."""
    model = tmp_path / "model"
    (model / "private").mkdir(parents=True)
    (model / "model.json").write_text('{"settings": {"mechanism": "local"}}')
    (model / "private" / "run.json").write_text('{"command": {"mechanism": "local"}}')
    fit, audit = (
        (lambda *words: parse("fit", fit_command.Command, words)),
        partial(parse, "audit", audit_command.Command),
    )
    assert fit("synthetic", "--out", str(model)).mechanism == DEFAULT
    assert fit(str(model)).mechanism == DEFAULT
    assert fit("--resume", str(model)).mechanism == fit(f"--resume={model}").mechanism == "local"
    assert fit("--resume", str(model), "--rounds", "3").rounds == 3
    assert audit(["synthetic", "--out", str(model)]).mechanism == DEFAULT
    assert audit([f"--out={model}"]).mechanism == DEFAULT
    assert audit(["--quick", str(model)]).mechanism == "local"


def test_the_command_keeps_what_it_was_told():
    command = with_flags_of(fit_command.Command, "langevin")(data="synthetic", temperature=2.0)
    assert fit_mechanisms.chosen(command).temperature == 2.0
    assert console.plain(dataclasses.asdict(command))["mechanism"] == "langevin"


def test_the_table_is_read_without_jax():
    code = (
        "import sys, dpmf_jax.mechanisms as m; m.table(); print(sorted({'jax', 'scipy'} &"
        " set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_whatever_is_released_is_put_on_trial():
    labels = [trial.label for spec in table().values() for trial in spec.trials]
    assert len(set(labels)) == len(labels)
    assert {name for name, spec in table().items() if not spec.trials} == {"non-private"}
