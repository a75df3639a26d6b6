"""The row on words of rounds: what it makes of blind jobs, and of builds that may not exist."""

from collections.abc import Callable

import numpy as np
import pytest

from securevfl.arrays import RingArray
from securevfl.auditing.judging import Immune, verdict_of
from securevfl.auditing.measures.words import (
    SURPRISE,
    beside,
    of_pairs,
    of_words,
    surprise,
    words_of_rounds,
)
from securevfl.auditing.subject import Subject
from securevfl.crypto import ring
from securevfl.crypto.ring import RING_BITS
from securevfl.job import Job
from tests.blind_pads import weakened
from tests.made_data import blocks_of, dataset_of, labels_of
from tests.unit.auditing.cells import Cells, cells_of, finding, reason

ROWS = 60
Uniform = Callable[..., RingArray]


def cells(scheme: str = "blind", loss: str = "taylor-logistic", size: int | str = "full") -> Cells:
    generator = np.random.default_rng(1)
    blocks = blocks_of(generator, 2, rows=ROWS)
    job = Job.of(
        job={"batch_size": size, "loss": loss, "rounds": 4, "eval_every": "never"},
        exchange={"scheme": scheme},
    )
    found = words_of_rounds(Subject(job, dataset_of(blocks, labels_of(generator, blocks)), 0))
    return cells_of(found)


def test_words_of_a_job_are_uniform_and_go_with_nothing() -> None:
    found = cells()
    assert list(found) == ["as owner", "as holder"]
    for cell in found.values():
        assert verdict_of([cell.outcome]) == "no_leak_found"
        assert len(finding(cell).detail["tests"]) == 6


def test_other_exchanges_have_no_such_words() -> None:
    (cell,) = cells("bfv", "logistic").values()
    assert isinstance(cell.outcome, Immune)


def test_words_that_no_view_has_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("securevfl.auditing.measures.words.HOLDERS", ("other words",))
    found = cells()
    assert verdict_of([found["as owner"].outcome]) == "no_leak_found"
    assert "no shares of other words of" in reason(found["as holder"])


def twice() -> Uniform:
    """The first words of each shape again, once."""
    drawn: dict[tuple[int, ...], list[RingArray]] = {}

    def uniform(*shape: int) -> RingArray:
        before = drawn.setdefault(shape, [])
        before.append(before[0] if len(before) == 1 else ring.uniform(*shape))
        return before[-1]

    return uniform


def always() -> Uniform:
    drawn: dict[tuple[int, ...], RingArray] = {}
    return lambda *shape: drawn.setdefault(shape, ring.uniform(*shape)).copy()


def left_out(*shape: int) -> RingArray:
    """A number that everybody knows, as far as can be from where truncation wraps."""
    return np.full(shape, 1 << (RING_BITS - 2), np.uint64)


def truncated(*shape: int) -> RingArray:
    """What is encrypted, as a pad: without the low bits that truncation drops."""
    return ring.uniform(*shape) & ~np.uint64((1 << 12) - 1)


BUILDS = [
    pytest.param("pads", twice(), "as owner", "in_pairs", id="a pad used twice"),
    pytest.param("pads", left_out, "as owner", "beside_what_is_hidden", id="a pad left out"),
    pytest.param(
        "pads", truncated, "as owner", "beside_what_is_hidden", id="truncation before the pad"
    ),
    pytest.param("masks", always(), "as holder", "in_pairs", id="a mask used twice"),
    pytest.param("masks", left_out, "as holder", "beside_what_is_hidden", id="a mask left out"),
]


@pytest.mark.parametrize(("where", "uniform", "case", "test"), BUILDS)
def test_a_build_that_may_not_exist_leaks(
    where: str, uniform: Uniform, case: str, test: str
) -> None:
    with weakened(where, uniform):
        found = cells(size=ROWS // 3)
    assert verdict_of([found[case].outcome]) == "leaks"
    assert max(each[test] for each in finding(found[case]).detail["tests"].values()) > 10
    (other,) = {*found} - {case}
    assert verdict_of([found[other].outcome]) == "no_leak_found"


@pytest.mark.parametrize("bits", [16, RING_BITS])
def test_what_words_are_tested_for(bits: int) -> None:
    """Uniform words pass, each kind of other ones is noticed."""
    mask = np.uint64((1 << bits) - 1)
    words = [ring.uniform(80) & mask for _ in range(4)]
    hidden = ring.of_integers(np.random.default_rng(3).integers(-99, 99, 80)) & mask
    margin = SURPRISE.margin
    assert surprise(of_words(np.stack(words), bits)) < margin
    others = [ring.uniform(80) & mask for _ in range(4)]
    assert surprise(of_pairs(words, others, bits)) < margin
    assert surprise(beside(words[0], hidden, bits)) < margin
    assert surprise(of_words(words[0] & ~np.uint64(1), bits)) > margin
    assert surprise(of_words(words[0] >> np.uint64(2), bits)) > margin
    assert surprise(of_words(hidden, bits)) > margin
    pair = [words[0], (words[0] + hidden) & mask]
    assert surprise(of_pairs(pair, [words[2], words[3]], bits)) > margin
    pair = [words[0], (words[0] + words[1] - words[2]) & mask]
    assert surprise(of_pairs(pair, [words[2], words[1]], bits)) > margin
    assert surprise(beside(hidden, hidden, bits)) > margin
    assert surprise(beside((hidden + (words[0] << np.uint64(4))) & mask, hidden, bits)) > margin
    assert surprise([]) == 0


def test_a_word_beyond_the_ring_is_noticed() -> None:
    words = ring.uniform(80)
    words[3] |= np.uint64(1 << RING_BITS)
    assert surprise(of_words(words, RING_BITS)) > 200
