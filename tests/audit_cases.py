"""Which audits the tests of a mechanism ask for: the exact ones and the quick ones; the others have tests of their own."""

STRUCTURAL = ("sensitivity", "post-processing", "noise", "density", "enumeration")
