from dataclasses import replace
from math import log, prod, sqrt

import numpy as np
import pytest
import tenseal.sealapi as seal

from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.ring_layout import RingLayout, RingProductFormat, _layout
from securevfl.errors import RangeExceeded

LONG = RingProductFormat(50_000, 60, 1, 1 << 20, products=20)
WIDE = RingProductFormat(60, 50_000, 1, 1 << 14, products=20)
FORMATS = [
    LONG,
    WIDE,
    replace(LONG, columns=20, products=1),
    replace(WIDE, columns=20, products=1),
    replace(LONG, columns=20, products=1, bandwidth_mbit=20.0),
    replace(WIDE, columns=20, products=1, bandwidth_mbit=20.0),
    RingProductFormat(256, 64, 1, 1 << 22, products=1000),
    RingProductFormat(15, 64, 1, 1, products=1),
    RingProductFormat(1, 1, 1, 0, products=1),
    RingProductFormat(3, 5, 9000, 1 << 30, products=7),
]


@pytest.mark.parametrize("fmt", FORMATS)
def test_masks_hide_the_job_and_keep_off_the_edges(fmt: RingProductFormat) -> None:
    layout = RingLayout.of(fmt)
    sizes, modulus = layout.sizes, prod(layout.sizes.primes())
    # Every entry that a reply's plaintexts can have, zeros beyond M's rows and columns among them.
    terms = layout.side * layout.chunk * layout.chunks
    revealed = layout.replies * len(layout.positions()) * fmt.products
    # Deviations of a sum of noise (deviation √10.5 each) that is passed once in 2^40 jobs, and
    # rounding of half a unit each at its worst.
    sigmas = sqrt(2 * log(2.0**41 * revealed))
    assert sizes.noise >= (sigmas * sqrt(10.5 * terms) + terms / 2) * fmt.matrix_bound + DEGREE
    assert sizes.edge >= sizes.noise * prod(sizes.primes()[: sizes.reply_primes]) // modulus
    of_reply = prod(sizes.primes()[: sizes.reply_primes])
    assert 2 * sizes.edge * revealed << (59 + 40) <= of_reply


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_layout_is_at_128_bits_and_the_same_at_both_ends(fmt: RingProductFormat) -> None:
    layout = RingLayout.of(fmt)
    assert layout.sizes.plain_bits == 59
    for context in (layout.sizes.context(), layout.sizes.context(fmt.matrix_bits)):
        qualifiers = context.key_context_data().qualifiers()
        assert qualifiers.sec_level == seal.SEC_LEVEL_TYPE.TC128
        moduli = context.first_context_data().parms().coeff_modulus()
        assert [each.value() for each in moduli] == layout.sizes.primes()
    _layout.cache_clear()
    assert RingLayout.of(replace(fmt)) == layout


@pytest.mark.parametrize("fmt", FORMATS)
def test_revealed_coefficients_are_each_ones_own_and_hold_everything(
    fmt: RingProductFormat,
) -> None:
    layout = RingLayout.of(fmt)
    assert layout.chunk * layout.side * layout.together <= DEGREE
    assert layout.extent <= DEGREE
    assert layout.chunks * layout.chunk >= fmt.inner
    assert layout.sides * layout.side >= fmt.outputs
    assert layout.groups * layout.together >= fmt.columns
    positions = layout.positions()
    needed = layout.side * layout.together
    assert len(np.unique(positions)) == len(positions) >= max(48, needed)
    assert len(positions) % 2 == 0
    assert positions.max() < DEGREE
    # What a row's coefficient holds beside its column, were every value and every entry 1, is none.
    stride, places = layout.side * layout.chunk, np.arange(DEGREE)
    of_columns, of_rows = np.zeros(DEGREE), np.zeros(DEGREE)
    of_columns[: layout.extent] = (places % stride < layout.chunk)[: layout.extent]
    of_rows[:stride] = 1
    sums = np.rint(
        np.fft.irfft(np.fft.rfft(of_columns, 2 * DEGREE) * np.fft.rfft(of_rows, 2 * DEGREE))
    )
    assert np.all((sums[:DEGREE] + sums[DEGREE:])[positions[:needed]] == layout.chunk)


def test_slow_lines_take_fewer_bytes() -> None:
    def size(fmt: RingProductFormat) -> int:
        layout = RingLayout.of(fmt)
        down = layout.replies * (DEGREE + len(layout.positions())) * sum(layout.sizes.reply_bits)
        return layout.inputs * layout.sizes.input_bytes + down // 8

    for fmt in (replace(LONG, columns=20), replace(WIDE, columns=20)):
        assert size(replace(fmt, bandwidth_mbit=20.0)) < size(fmt)


def test_many_columns_share_plaintexts() -> None:
    for fmt in (LONG, WIDE):
        one, twenty = RingLayout.of(fmt), RingLayout.of(replace(fmt, columns=20))
        assert twenty.chunks * twenty.sides < 20 * one.chunks * one.sides
        assert twenty.seconds < 20 * one.seconds


def test_masks_that_do_not_fit_is_refused_with_its_numbers() -> None:
    fits = [_fits(replace(LONG, products=1 << power)) for power in range(70)]
    most = fits.index(False)
    assert all(fits[:most])
    assert not any(fits[most:])
    with pytest.raises(RangeExceeded, match=rf"{1 << most} products of 60 x 50000 entries within"):
        RingLayout.of(replace(LONG, products=1 << most))


def _fits(fmt: RingProductFormat) -> bool:
    try:
        RingLayout.of(fmt)
    except RangeExceeded:
        return False
    return True


@pytest.mark.parametrize("name", ["inner", "outputs", "columns", "products"])
def test_nothing_to_multiply_is_refused(name: str) -> None:
    with pytest.raises(RangeExceeded, match="positive"):
        RingLayout.of(replace(LONG, **{name: 0}))
    with pytest.raises(RangeExceeded, match="positive"):
        RingLayout.of(replace(LONG, matrix_bound=-1))


def test_entries_beyond_the_ring_are_refused() -> None:
    fmt = RingProductFormat(2, 2, 1, (1 << 58) - 1)
    assert RingLayout.of(fmt).sizes.primes()
    with pytest.raises(RangeExceeded, match=rf"up to {1 << 58}, below 2\^58"):
        RingLayout.of(replace(fmt, matrix_bound=1 << 58))
