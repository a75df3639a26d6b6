"""Checks on replies under `blind`: an owner whose replies are no products is caught, and recorded.

The cheat adds ⌊q/t⌋ to one coefficient of a reply's c₁. Its holder then decrypts the product plus
coefficients of its own key, as in attacks 2 and 3 of docs/explanation/blind.md.
"""

from collections.abc import Callable, Collection
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto import ring, ring_products
from securevfl.crypto.bfv_core import pack_reply, reply_bytes, unpack_reply
from securevfl.crypto.equality import EqualityTest
from securevfl.crypto.inspection import owner_secret
from securevfl.crypto.ring_layout import RingLayout, RingProductFormat
from securevfl.crypto.ring_products import RingProductEvaluator, RingProductOwner
from securevfl.errors import CheckFailed, ConfigError, MalformedMessage, PeerUnreachable
from securevfl.job import Job
from securevfl.protocols.blind.checks import (
    Combinations,
    ConfirmedCheck,
    OpenedCheck,
    ProvenReplies,
)
from securevfl.protocols.blind.links import MaskedSteps
from securevfl.protocols.guards import failed_checks
from securevfl.runtime.channel import NetworkEnd
from securevfl.training import Environment, TrainingResult, plan_for, train
from securevfl.wire.codec import Message
from tests.jobs import all_weights
from tests.made_data import made
from tests.tampering import changed

DATASET = made(5, rows=60, columns=3)


def job(checks: int | None = None, **settings: object) -> Job:
    steps: dict[str, object] = {"batch_size": "full", "loss": "taylor-logistic", "rounds": 4}
    steps |= {"eval_every": "never", "allow_label_leak": True}  # of 60 people, several times
    exchange = {"scheme": "blind"} if checks is None else {"scheme": "blind", "checks": checks}
    return Job.of(job={**steps, **settings}, exchange=exchange)


class AddsDigits(RingProductEvaluator):
    """The cheat, in every reply, and what it brings into what is decrypted."""

    @override
    def product(self, encrypted: bytes, matrix: IntArray) -> tuple[bytes, RingArray]:
        reply, mask = super().product(encrypted, matrix)
        layout = RingLayout.of(self.product_format)
        sizes, positions = layout.sizes, layout.positions()
        size = reply_bytes(sizes, len(positions))
        polynomials = unpack_reply(sizes, reply[:size], positions)
        primes = sizes.primes()[: sizes.reply_primes]
        unit = prod(primes) >> sizes.plain_bits
        for c1, prime in zip(polynomials[1], primes, strict=True):
            c1[0] = (int(c1[0]) + unit) % prime
        return pack_reply(sizes, polynomials, positions) + reply[size:], mask


def cheated(patch: pytest.MonkeyPatch, settings: Job, place: Environment) -> TrainingResult:
    """The job, with feature parties' and the label party's replies crafted."""
    patch.setattr(ring_products, "RingProductEvaluator", AddsDigits)
    return train(settings, DATASET, place)


def test_the_cheat_brings_digits_of_the_key_into_what_is_decrypted() -> None:
    """And nobody would notice: the control of the next test."""
    fmt = RingProductFormat(4, 5, 3, 100, products=2)
    owner = RingProductOwner(fmt)
    values, matrix = ring.uniform(4, 3), np.full((5, 4), 7)
    reply, mask = AddsDigits(owner.public_bytes, fmt).product(owner.encrypt(values), matrix)
    off = ring.centred(ring.reduced(owner.decrypt(reply) - mask - ring.Factor(matrix) @ values))
    layout = RingLayout.of(fmt)
    secret = owner_secret(owner)[layout.positions()[: layout.side * layout.together]]
    assert sorted(off.ravel().tolist()) == sorted(secret.tolist()[: off.size])
    assert np.any(off)


def test_an_owner_whose_replies_are_no_products_is_caught_and_recorded(tmp_path: Path) -> None:
    place = Environment(guard_directory=tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        assert cheated(patch, job(checks=0), Environment()).rounds == 4
        with pytest.raises(CheckFailed, match="not what the protocol computes"):
            cheated(patch, job(), Environment())
        with pytest.raises(CheckFailed, match=r"starts before `securevfl guard trust party[01]`"):
            cheated(patch, job(), place)
    (recorded, *_) = (each for each in failed_checks.checks(tmp_path) if each.failed)
    assert recorded.job.name == "job"
    # Nothing goes on without a person's word, in this job or another.
    for settings in (job(), job(rounds=3), job(checks=0), Job.of(exchange={"scheme": "plain"})):
        with pytest.raises(ConfigError, match=f"{recorded.peer!r} failed a check of encrypted"):
            train(settings, DATASET, place)
    for each in {check.peer for check in failed_checks.checks(tmp_path)}:
        failed_checks.trust(tmp_path, each)
    assert train(job(), DATASET, place).rounds == 4
    assert failed_checks.checks(tmp_path) == []


def test_a_holder_whose_combinations_are_others_is_caught_and_recorded(tmp_path: Path) -> None:
    """It would ask what M makes of them: one guess a block, which the owner would not hear of."""
    extended = Combinations.extended

    def others(self: Combinations, columns: RingArray) -> RingArray:
        both = extended(self, columns)
        both[0, columns.shape[1] :] += np.uint64(1)
        return both

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Combinations, "extended", others)
        # It goes on whatever the test says.
        patch.setattr(EqualityTest, "accepts", lambda *_: True)
        with pytest.raises(CheckFailed):
            train(job(), DATASET, Environment(guard_directory=tmp_path))
    assert any(each.failed for each in failed_checks.checks(tmp_path))


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_checks_change_no_model_and_take_three_messages_a_link_and_block(loss: str) -> None:
    results = [train(job(checks, loss=loss), DATASET) for checks in (0, 1, 40)]
    for result in results[1:]:
        assert np.abs(all_weights(result) - all_weights(results[0])).max() <= 2.0**-8
        more = result.costs().messages - results[0].costs().messages
        assert more == 6
    assert results[1].costs().offline_bytes < results[2].costs().offline_bytes


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (OpenedCheck, lambda m: OpenedCheck(m.step, bytes([m.seed[0] ^ 1]) + m.seed[1:], m.point)),
        (ProvenReplies, lambda m: ProvenReplies(m.step, m.point, bytes(32))),
        (ConfirmedCheck, lambda m: ConfirmedCheck(m.step, bytes(32))),
    ],
)
def test_another_seed_and_another_tag_fail(
    kind: type[Message], change: Callable[[Any], Message]
) -> None:
    with pytest.raises(CheckFailed):
        train(job(), DATASET, Environment(tamper=changed(kind, change)))


def test_among_three_the_cheat_fails_and_nobody_else(tmp_path: Path) -> None:
    def damaged(message: MaskedSteps) -> MaskedSteps:
        (reply,) = message.groups
        return MaskedSteps(message.step, (bytes([reply[0] ^ 1]) + reply[1:],))

    tamper = changed(MaskedSteps, damaged, sender="party2")
    place = Environment(guard_directory=tmp_path, tamper=tamper)
    with pytest.raises(CheckFailed, match="requests of 'party2' are not"):
        train(job(), made(5, 3, rows=60, columns=2), place)
    assert [each.peer for each in failed_checks.checks(tmp_path) if each.failed] == ["party2"]


def test_a_seed_of_another_size_is_refused() -> None:
    """Not by an error that names nobody."""
    short = changed(OpenedCheck, lambda m: OpenedCheck(m.step, m.seed[1:], m.point))
    with pytest.raises(MalformedMessage, match="a seed of 31 bytes, 32 expected"):
        train(job(), DATASET, Environment(tamper=short))


def test_a_peer_that_fails_is_recorded_even_if_another_leaves(tmp_path: Path) -> None:
    """Two that pool would else count as two that left."""
    peers, plan = ("shop", "bank"), plan_for(job(), DATASET)

    def check() -> None:
        with failed_checks.on_record(tmp_path, plan, peers) as failed:
            failed.append("shop")
            raise PeerUnreachable("bank left")

    with pytest.raises(PeerUnreachable):
        check()
    recorded = [(each.peer, each.failed) for each in failed_checks.checks(tmp_path)]
    assert recorded == [("shop", False), ("bank", False), ("shop", True)]


@pytest.mark.parametrize("kind", [ProvenReplies, ConfirmedCheck])
def test_a_peer_that_leaves_a_check_is_recorded_and_refused_after_a_few(
    kind: type[Message], tmp_path: Path
) -> None:
    """From what was opened it may see that it would fail; another job would be another try."""
    receive, place = NetworkEnd.receive, Environment(guard_directory=tmp_path)

    async def left(
        self: NetworkEnd,
        senders: Collection[str],
        awaited: type[Message],
        step: int | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> tuple[str, Message]:
        if awaited is kind and self.name == "party0":
            raise PeerUnreachable(f"{senders} left")
        return await receive(self, senders, awaited, step, timeout_seconds=timeout_seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NetworkEnd, "receive", left)
        for _ in range(failed_checks.MOST_LEFT + 1):
            with pytest.raises(PeerUnreachable):
                train(job(), DATASET, place)
    of_peer = [each for each in failed_checks.checks(tmp_path) if each.peer == "party1"]
    assert [each.failed for each in of_peer] == [False] * (failed_checks.MOST_LEFT + 1)
    with pytest.raises(ConfigError, match="left 4 jobs when encrypted replies were checked"):
        train(job(), DATASET, place)


@pytest.mark.parametrize("checks", [1, 2, 4])
def test_top_bits_of_one_column_pass_once_in_two_to_the_checks(checks: int) -> None:
    """The best that is known: bits of 2^58, which even factors take away.

    Of 600 tries; four deviations either side. All other guesses of what changed are as likely.
    """
    generator, passed = np.random.default_rng(checks), 0
    for _ in range(600):
        holder = Combinations(checks)
        columns = ring.uniform(4, 5)
        words = holder.extended(columns)  # as if M were the identity, and masks 0
        words[:, 2] += np.uint64(1 << 58) * generator.integers(1, 2, 4).astype(np.uint64)
        holder.take(words)
        owner = Combinations(checks, holder.seed)
        owner.take_mask(np.zeros_like(words), 5)
        passed += holder._digest.digest() == owner._digest.digest()
    expected = 600 * 2.0**-checks
    assert abs(passed - expected) < 4 * np.sqrt(expected) + 1


def test_replies_of_one_matrix_and_any_masks_pass() -> None:
    holder, generator = Combinations(3), np.random.default_rng(1)
    products = []
    for rounds, outputs in ((5, 2), (1, 7)):
        matrix = generator.integers(-1000, 1000, (outputs, 4))
        words = holder.extended(ring.uniform(4, rounds))
        masks = ring.uniform(*(outputs, rounds + 3))
        products.append((ring.reduced(ring.Factor(matrix) @ words + masks), masks, rounds))
    owner = Combinations(3, holder.seed)
    for found, masks, rounds in products:
        holder.take(found)
        owner.take_mask(masks, rounds)
    first, second = holder.test(b"job"), owner.test(b"job")
    assert first.accepts(second.point, second.tag(first.point))
