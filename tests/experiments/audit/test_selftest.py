"""The self-test that a report carries."""

import pytest

from experiments.audit import selftest as audit_selftest

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_the_self_test_catches_its_bugs_and_spares_the_sound_mechanism():
    rows = audit_selftest.run()
    assert [row["caught"] for row in rows] == [True] * len(audit_selftest.BUGS)
    assert {row["sound"] for row in rows} == {"consistent"}
