"""What the tests of paper 001 share."""

import pytest

from tests.cases import reproduce as cases


@pytest.fixture(scope="module")
def tiny():
    return cases.generated()
