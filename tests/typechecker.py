"""What checks annotations while the tests run: beartype, with an int where a float is due allowed,
as type checkers have it (PEP 484)."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
