"""The run-time type checker of the tests: beartype, with an int accepted where a float is meant (as
in PEP 484).
"""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
