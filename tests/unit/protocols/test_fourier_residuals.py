"""Logistic residuals in shares over messages: against σ, used once, refused, and what is seen."""

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from securevfl.arrays import FloatArray, RingArray
from securevfl.crypto import ring
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.scheme import KEY_SEED_BYTES
from securevfl.crypto.slot_parameters import SlotParameters, pairs_of
from securevfl.errors import (
    CryptoError,
    MalformedMessage,
    PeerViolation,
    RangeExceeded,
    UnexpectedMessage,
)
from securevfl.models.losses import Logistic
from securevfl.models.sigmoid_series import SigmoidSeries
from securevfl.protocols.blind import residuals
from securevfl.protocols.blind.fixed_point import PhaseFormat
from securevfl.protocols.blind.residuals import (
    EncryptedPhaseProducts,
    EncryptedPhases,
    LogisticResiduals,
    MaskedPhases,
)
from securevfl.protocols.blind.rounds import StaysInRange, require_range
from securevfl.protocols.session.gathering import Party
from securevfl.protocols.session.keys import KeyMaker, PublicKey
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import CORRELATED_RANDOMNESS, Costs
from securevfl.runtime.line import PRESETS
from securevfl.runtime.simulation import Simulated, simulate
from securevfl.runtime.views import Decrypted
from tests.ciphertexts import is_uniform
from tests.tampering import changed

FORMAT = PhaseFormat(SigmoidSeries.of_period(32), 20)
NAMES = ("bank", "shop")
SEED = bytes(KEY_SEED_BYTES)
ROWS, BATCH = 3000, 250
Program = Callable[[Party, str], Awaitable[Any]]


def run(program: Program, **options: Any) -> Simulated[Any]:  # noqa: ANN401
    def of(channel: Channel, costs: Costs) -> Awaitable[Any]:
        party = Party(channel, costs, NAMES, "bank", Logistic())
        return program(party, next(name for name in NAMES if name != party.name))

    programs: Any = dict.fromkeys(NAMES, of)
    return simulate(programs, PRESETS["lan"], **options)


def shares_of(values: FloatArray) -> dict[str, RingArray]:
    words = ring.uniform(len(values))
    others = ring.reduced(ring.encode(values, FORMAT.prediction_fraction_bits, 1e3, "H") - words)
    return {"bank": words, "shop": others}


def test_masks_count_every_pair_of_ciphertexts_of_every_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[int] = []
    made = SlotParameters.of

    def of(products: int) -> SlotParameters:
        found.append(pairs_of(products))
        return made(products)

    monkeypatch.setattr(SlotParameters, "of", of)
    blocks = [DEGREE // FORMAT.terms + 1, 5, 5]

    async def program(party: Party, peer: str) -> None:
        first = party.name == "bank"
        side = await LogisticResiduals.establish(
            party, peer, FORMAT, blocks, first=first, seed=SEED, keys=KeyMaker()
        )
        for rows in blocks:
            await side.make_offline(rows)

    view = run(program, record_views=True).views["shop"]
    replies = len(view.received(EncryptedPhaseProducts))
    assert found == [replies] * 2 == [4] * 2


def test_pads_made_in_pieces_take_no_more_ciphertexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks cover as many as all rows at once take; and rounds may reach over two pieces."""
    assert residuals._PIECE % DEGREE == 0
    monkeypatch.setattr(residuals, "_PIECE", residuals._PIECE // 8)
    values = np.linspace(-FORMAT.series.range, FORMAT.series.range, DEGREE + 500)
    shares, batch = shares_of(values), (DEGREE + 500) // 2

    async def program(party: Party, peer: str) -> RingArray:
        side, own = await side_of(party, peer, len(values)), shares[party.name]
        await side.make_offline(len(values))
        parts = own[:batch], own[batch:]
        return np.concatenate([await side.sigmoid_shares(*each) for each in enumerate(parts)])

    done = run(program, record_views=True)
    found = ring.decode(
        ring.reduced(done.results["bank"] + done.results["shop"]), FORMAT.fraction_bits
    )
    assert np.abs(found - FORMAT.series.values(values)).max() < 0.01
    sent = len(done.views["bank"].received(EncryptedPhases))
    assert sent == pairs_of(len(values) * FORMAT.terms)


async def side_of(party: Party, peer: str, rows: int) -> LogisticResiduals:
    return await LogisticResiduals.establish(
        party, peer, FORMAT, [rows], first=party.name == "bank", seed=SEED, keys=KeyMaker()
    )


def rounds_of(values: FloatArray) -> Program:
    shares = shares_of(values)

    async def program(party: Party, peer: str) -> RingArray:
        side = await side_of(party, peer, len(values))
        # In two pieces, of which the second is more than one pair of ciphertexts.
        await side.make_offline(BATCH)
        await side.make_offline(len(values) - BATCH)
        own = shares[party.name]
        found = [
            await side.sigmoid_shares(index, own[at : at + BATCH])
            for index, at in enumerate(range(0, len(own), BATCH))
        ]
        with pytest.raises(CryptoError, match="0 rows are left"):
            await side.sigmoid_shares(len(found), own[:1])
        return np.concatenate(found)

    return program


@pytest.fixture(scope="module")
def values() -> FloatArray:
    return np.random.default_rng(1).uniform(-FORMAT.series.range, FORMAT.series.range, ROWS)


@pytest.fixture(scope="module")
def done(values: FloatArray) -> Simulated[Any]:
    return run(rounds_of(values), record_views=True)


def test_shares_add_up_to_the_residuals(done: Simulated[Any], values: FloatArray) -> None:
    total = ring.reduced(done.results["bank"] + done.results["shop"])
    found = ring.decode(total, FORMAT.fraction_bits)
    assert np.abs(found - FORMAT.series.values(values)).max() < 0.0075
    assert np.abs(found - (expit(values) - 0.5)).max() < 0.03


def test_bytes_offline_and_in_a_round(done: Simulated[Any]) -> None:
    bank, shop = (done.costs[name] for name in NAMES)
    pairs = 1 + -(-(ROWS - BATCH) * FORMAT.terms // 8192)
    assert bank.messages["EncryptedPhaseProducts"] == shop.messages["EncryptedPhases"] == pairs
    sizes = SlotParameters.of(pairs * 8192)
    assert bank.bytes_sent["EncryptedPhaseProducts"] < pairs * (2 * sizes.reply_bytes + 200)
    offline_bytes = bank.bytes_sent["EncryptedPhaseProducts"] + shop.bytes_sent["EncryptedPhases"]
    assert offline_bytes / (pairs * 8192) < 105  # a row and term
    for costs in (bank, shop):
        assert costs.bytes_sent["MaskedPhases"] < ROWS // BATCH * (2 * BATCH + 200)
        assert costs.seconds[CORRELATED_RANDOMNESS] > 0


def test_everything_that_is_seen_is_uniform(done: Simulated[Any]) -> None:
    for name in NAMES:
        messages = [each.message for each in done.views[name].received(MaskedPhases)]
        opened = b"".join(each.phases for each in messages if isinstance(each, MaskedPhases))
        assert len(opened) == 2 * ROWS
        assert is_uniform(np.frombuffer(opened, np.uint8), 256, 1e-9)
    decrypted = [each.values for each in done.views["shop"].entries if isinstance(each, Decrypted)]
    assert sum(each.size for each in decrypted) == 2 * ROWS * FORMAT.terms
    top = np.concatenate([each.ravel() for each in decrypted]) + np.uint64(1 << 48) >> np.uint64(42)
    assert is_uniform(top, 64, 1e-9)
    assert not [each for each in done.views["bank"].entries if isinstance(each, Decrypted)]


def test_either_party_may_come_first_and_pads_may_be_kept(values: FloatArray) -> None:
    some = values[:40]
    shares = shares_of(some)

    async def program(party: Party, peer: str) -> RingArray:
        first = party.name == "shop"
        made = await LogisticResiduals.establish(
            party, peer, FORMAT, [40], first=first, seed=SEED, keys=KeyMaker()
        )
        await made.make_offline(40)
        later = LogisticResiduals(party, peer, FORMAT, first=first)
        later.put(made.pop(40))
        with pytest.raises(CryptoError, match="there is no key to make more"):
            await later.make_offline(1)
        return await later.sigmoid_shares(0, shares[party.name])

    results = run(program).results
    found = ring.decode(ring.reduced(results["bank"] + results["shop"]), FORMAT.fraction_bits)
    assert np.abs(found - FORMAT.series.values(some)).max() < 0.0075


@pytest.mark.parametrize(
    ("kind", "change", "error"),
    [
        (PublicKey, lambda each: PublicKey("bfv", each.material), PeerViolation),
        (PublicKey, lambda each: PublicKey(each.scheme, each.material[:-1]), PeerViolation),
        (EncryptedPhases, lambda each: EncryptedPhases(0, each.parts[:1]), MalformedMessage),
        (
            EncryptedPhaseProducts,
            lambda each: EncryptedPhaseProducts(0, (each.parts[0], bytes(len(each.parts[1])))),
            MalformedMessage,
        ),
        (MaskedPhases, lambda each: MaskedPhases(0, each.phases[:-1]), UnexpectedMessage),
    ],
)
def test_what_no_party_would_send_is_refused(
    kind: type[Any], change: Callable[[Any], Any], error: type[Exception]
) -> None:
    shares = shares_of(np.zeros(4))

    async def program(party: Party, peer: str) -> None:
        side = await side_of(party, peer, 4)
        await side.make_offline(4)
        await side.sigmoid_shares(0, shares[party.name])

    with pytest.raises(error):
        run(program, tamper=changed(kind, change))


def test_few_pairs_are_under_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residuals, "_IN_FLIGHT", 1)
    rows = 2 * 8192 // FORMAT.terms + 5

    async def program(party: Party, peer: str) -> int:
        side = await side_of(party, peer, rows)
        await side.make_offline(rows)
        return len(side.pads)

    done = run(program)
    assert set(done.results.values()) == {rows}
    assert done.costs["shop"].messages["EncryptedPhases"] == 3


@pytest.mark.parametrize(("largest", "within"), [(16.0, True), (16.01, False)])
@pytest.mark.parametrize("who", NAMES)
def test_predictions_beyond_half_a_period_end_the_job_for_all(
    who: str, largest: float, within: bool
) -> None:
    failed = []

    async def program(party: Party, peer: str) -> None:
        del peer
        own = np.array([1.0, -largest if party.name == who else 2.0])
        try:
            await require_range(party, own, FORMAT.series)
        except RangeExceeded as error:
            failed.append(str(error))

    done = run(program, record_views=True)
    for name in NAMES:
        (entry,) = done.views[name].received(StaysInRange)
        assert isinstance(entry.message, StaysInRange)
        assert entry.message.within == (within or name == who)
    assert len(failed) == (0 if within else 2)
    assert all("period = 64" in each for each in failed)
