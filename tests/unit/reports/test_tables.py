import pytest

from securevfl.reports.tables import seconds, size


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (9.994e-4, "999 us"),
        (9.996e-4, "1 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (999.4, "999 s"),
        (1245.0, "1,245 s"),
        (7000.0, "117 min"),
    ],
)
def test_times_have_three_digits_and_no_exponent(value: float, shown: str) -> None:
    assert seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(999, "999 B"), (1000, "1 kB"), (999_700, "1 MB"), (2.5e9, "2.5 GB"), (1e12, "1 TB")],
)
def test_sizes_have_three_digits_and_no_exponent(value: float, shown: str) -> None:
    assert size(value) == shown
