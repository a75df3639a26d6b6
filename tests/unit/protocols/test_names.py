"""Names that are known before the catalogue is imported."""

import importlib.util

from securevfl.protocols import catalogue, names


def test_every_exchange_and_algorithm_has_its_name_before_it_is_imported() -> None:
    # A copy of the module as it stands in its file: the catalogue adds to the one in use.
    spec = importlib.util.spec_from_file_location("fresh_names", names.__file__)
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    assert list(catalogue.EXCHANGES) == fresh.EXCHANGES
    assert list(catalogue.ALGORITHMS) == fresh.ALGORITHMS
