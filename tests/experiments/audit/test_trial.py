"""One trial among many: its programs are let go of in time."""

import pytest

from experiments.audit import trial as audit_trial


@pytest.mark.parametrize(("more", "times"), [(1, 1), (0, 0)])
def test_programs_are_let_go_of_before_memory_mappings_run_out(more, times, monkeypatch):
    cleared = []
    monkeypatch.setattr(audit_trial, "_mappings", lambda: audit_trial.MAPPINGS + more)
    monkeypatch.setattr("jax.clear_caches", lambda: cleared.append(True))
    audit_trial._forget_programs()
    assert len(cleared) == times
