"""Which audits the tests of a mechanism ask for: those that cost little; the others have tests of
their own.
"""

STRUCTURAL = ("sensitivity", "post-processing", "noise", "density", "enumeration")
