import weakref
from collections.abc import Iterator
from math import prod

import numpy as np
import pytest
import tenseal.sealapi as seal

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto import residues, ring
from securevfl.crypto.inspection import with_noise
from securevfl.crypto.ring_layout import RingLayout, RingProductFormat
from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner
from securevfl.errors import RangeExceeded

INNER, OUTPUTS, COLUMNS = 900, 60, 20
FORMAT = RingProductFormat(INNER, OUTPUTS, COLUMNS, 1 << 12, products=5)
SHAPE = (OUTPUTS, INNER)


@pytest.fixture(scope="module")
def owner() -> RingProductOwner:
    return RingProductOwner(FORMAT)


@pytest.fixture
def evaluator(owner: RingProductOwner) -> RingProductEvaluator:
    return RingProductEvaluator(owner.public_bytes, FORMAT)


@pytest.fixture(scope="module")
def matrix() -> IntArray:
    return np.random.default_rng(1).integers(-4096, 4096, SHAPE, endpoint=True)


@pytest.fixture(scope="module")
def encrypted(owner: RingProductOwner) -> bytes:
    return owner.encrypt(ring.uniform(INNER, COLUMNS))


def test_no_more_products_are_made_than_masks_cover() -> None:
    fmt = RingProductFormat(4, 3, 2, 1, products=2)
    owner = RingProductOwner(fmt)
    evaluator, matrix = RingProductEvaluator(owner.public_bytes, fmt), np.ones((3, 4), np.int64)
    encrypted = owner.encrypt(ring.uniform(4, 2))
    for _ in range(fmt.products):
        evaluator.product(encrypted, matrix)
    with pytest.raises(RangeExceeded, match="masks cover 2 products"):
        evaluator.product(encrypted, matrix)


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((INNER, COLUMNS + 1), np.uint64),
        np.zeros((INNER - 1, COLUMNS), np.uint64),
        np.zeros(INNER, np.uint64),
        np.zeros((INNER, COLUMNS), np.int64),
        np.full((INNER, COLUMNS), 1 << 59, np.uint64),
    ],
)
def test_values_that_are_no_residues_of_the_shape_are_refused(
    owner: RingProductOwner, values: RingArray
) -> None:
    with pytest.raises(RangeExceeded, match=rf"of 59 bits of shape \({INNER}, {COLUMNS}\)"):
        owner.encrypt(values)


@pytest.mark.parametrize(
    ("matrix", "says"),
    [
        (np.zeros((OUTPUTS, INNER + 1), np.int64), "shape"),
        (np.zeros((OUTPUTS - 1, INNER), np.int64), "shape"),
        (np.zeros(SHAPE), "float64"),
        (np.full(SHAPE, 4097), "is 4097, at most 4096"),
        (np.full(SHAPE, -4097), "is 4097, at most 4096"),
        (np.full(SHAPE, -(1 << 63)), "at most 4096"),
    ],
)
def test_a_matrix_beyond_the_format_is_refused(
    evaluator: RingProductEvaluator, encrypted: bytes, matrix: IntArray, says: str
) -> None:
    with pytest.raises(RangeExceeded, match=says):
        evaluator.product(encrypted, matrix)


@pytest.mark.parametrize(
    "fmt",
    [
        RingProductFormat(2600, 8, 10, 9, bandwidth_mbit=1e6),
        RingProductFormat(8, 1300, 10, 9, bandwidth_mbit=20.0),
    ],
    ids=["more inputs", "more replies"],
)
def test_little_lives_at_once_and_blocks_of_zeros_make_no_plaintexts(
    fmt: RingProductFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = RingLayout.of(fmt)
    assert (layout.inputs > layout.replies) == (fmt.inner > fmt.outputs)
    assert layout.chunks > 1 < layout.sides
    plaintexts: list[weakref.ref[seal.Plaintext]] = []
    vectors: list[weakref.ref[seal.Ciphertext]] = []
    most = [0, 0]
    made_before_replies: list[int] = []
    transformed, take_in = RingProductEvaluator._part, RingProductEvaluator._take_in
    blinder = RingProductEvaluator._blinder

    def watched(self: RingProductEvaluator, block: IntArray, chunk: int) -> seal.Plaintext | None:
        plain = transformed(self, block, chunk)
        if plain is not None:
            plaintexts.append(weakref.ref(plain))
        for kind, made in enumerate((plaintexts, vectors)):
            most[kind] = max(most[kind], sum(each() is not None for each in made))
        return plain

    def seen(self: RingProductEvaluator, encrypted: bytes) -> Iterator[seal.Ciphertext]:
        for vector in take_in(self, encrypted):
            vectors.append(weakref.ref(vector))
            yield vector

    def replied(self: RingProductEvaluator) -> object:
        made_before_replies.append(len(plaintexts))
        return blinder(self)

    monkeypatch.setattr(RingProductEvaluator, "_blinder", replied)
    monkeypatch.setattr(RingProductEvaluator, "_part", watched)
    monkeypatch.setattr(RingProductEvaluator, "_take_in", seen)
    owner = RingProductOwner(fmt)
    evaluator = RingProductEvaluator(owner.public_bytes, fmt, native=False)
    encrypted = owner.encrypt(ring.uniform(fmt.inner, fmt.columns))
    matrix = np.ones((fmt.outputs, fmt.inner), np.int64)
    matrix[: layout.side, : layout.chunk] = 0
    evaluator.product(encrypted, matrix)
    assert len(plaintexts) == layout.chunks * layout.sides - 1
    assert most[0] <= 2
    assert most[1] <= (layout.inputs if layout.inputs <= layout.replies else 2 * layout.groups)
    # The constructor makes one blinder. Where inputs are fewer, a sum becomes a reply before the
    # next one is begun.
    assert (made_before_replies[1] < len(plaintexts)) == (layout.inputs <= layout.replies)


def test_what_is_made_offline_is_used_once(
    owner: RingProductOwner, matrix: IntArray, encrypted: bytes
) -> None:
    evaluator = RingProductEvaluator(owner.public_bytes, FORMAT)
    replies = RingLayout.of(FORMAT).replies
    assert evaluator.lacks_blinders()
    assert [evaluator.make_blinder() for _ in range(replies + 1)] == [True] * replies + [False]
    assert not evaluator.lacks_blinders()
    (first, mask), (second, other) = (evaluator.product(encrypted, matrix) for _ in range(2))
    assert evaluator.lacks_blinders()
    assert first != second
    assert not np.any(mask == other)
    found = [owner.decrypt(first) - mask, owner.decrypt(second) - other]
    assert np.array_equal(ring.reduced(found[0]), ring.reduced(found[1]))


@pytest.mark.parametrize("sign", [-1, 1])
def test_products_are_exact_at_the_edge_of_noise(
    sign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks as close to rounding edges as they come, and noise of the largest size."""
    fmt = RingProductFormat(4, 5, 1, 100, products=2)
    owner = RingProductOwner(fmt)
    evaluator = RingProductEvaluator(owner.public_bytes, fmt)
    sizes, values = RingLayout.of(fmt).sizes, ring.uniform(4, 1)
    reach = prod(sizes.primes()[: sizes.reply_primes]) // (2 << ring.RING_BITS) - sizes.edge - 1
    dropped = prod(sizes.primes()[sizes.reply_primes :])

    def at_the_edge(bound: int, count: int) -> RingArray:
        assert bound == 2 * reach + 1
        extreme = (2 * reach if sign > 0 else 0).to_bytes(16, "big")
        words = np.frombuffer(extreme, ">u8").astype(np.uint64)
        return np.repeat(words[:, None], count, axis=1)

    monkeypatch.setattr(residues, "_uniform_words", at_the_edge)
    matrix = np.full((5, 4), 100)
    for share, exact in ((1 / 2, True), (2, False)):
        # A word of noise in an input, at the entry that all rows multiply by 100.
        word = int(share * sizes.edge) * dropped // 100
        encrypted = with_noise(sizes, owner.encrypt(values), 0, sign * word)
        reply, mask = evaluator.product(encrypted, matrix)
        found = ring.reduced(owner.decrypt(reply) - mask)
        assert np.array_equal(found, ring.reduced(matrix.view(np.uint64) @ values)) == exact
