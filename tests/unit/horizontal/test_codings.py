"""Federations of quadratics whose uploads are compressed, or clipped and noisy."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from securevfl.arrays import RealArray
from securevfl.errors import ConfigError, MalformedMessage, PeerViolation
from securevfl.privacy.clients import ClientNoise
from securevfl.privacy.streams import NoiseKey
from securevfl.protocols.horizontal.blocks import Blocks
from securevfl.protocols.horizontal.compressed import Compressed, CompressedUpload
from securevfl.protocols.horizontal.compression import Compressor, Quantizer, TopK
from securevfl.protocols.horizontal.federation import Federation
from securevfl.protocols.horizontal.handing import Masked
from securevfl.protocols.horizontal.local import ClientState, local_training
from securevfl.protocols.horizontal.methods import METHODS
from securevfl.protocols.horizontal.noisy import Noisy, promise
from securevfl.protocols.horizontal.server import ServerState, Totals, aggregate
from securevfl.protocols.horizontal.simulation import World, simulate_federation
from securevfl.protocols.horizontal.uploads import BlockUpload, Coding, Plain
from securevfl.wire.codec import StepMessage, decode, encode
from tests.quadratics import PARAMETERS, Quadratic, federation, optimum, quadratics

BLOCKS = Blocks.equal({"first": 6, "second": 4, "last": 2}, 2, shared=["last"])
Kept = dict[int, ClientState]
NOISE = ClientNoise(3.0, 1.0)


def trained(
    by: Federation, coding: Coding, problems: list[Quadratic], dtype: type = np.float64
) -> tuple[ServerState, Kept, int]:
    """All rounds over bytes; the state, what clients kept, and how many bytes they sent."""
    state = ServerState.start(np.zeros(PARAMETERS, dtype), by.method)
    kept: Kept = {}
    sent = 0
    for index in range(by.settings.rounds):
        messages: dict[int, StepMessage] = {}
        for each in by.assignments(index):
            before = kept.get(each.client, ClientState())
            broadcast = state.broadcast(each)
            found = local_training(problems[each.client], by, broadcast, before)
            message, kept[each.client] = coding.seal(by, found.upload, broadcast, found.state)
            data = encode(message)
            sent += len(data)
            received = decode(data)
            assert isinstance(received, coding.kind)
            messages[each.client] = received
        state = aggregate(state, by, coding.open(by, state, messages))
    return state, kept, sent


def off(state: ServerState, problems: list[Quadratic]) -> float:
    return float(np.linalg.norm(state.weights - optimum(problems)))


@pytest.mark.parametrize("name", ["fedavg", "fedbcgd", "fedbcgd+", "scaffold", "feddc"])
def test_everything_kept_is_what_plain_uploads_come_to(name: str) -> None:
    problems = quadratics(8, 0)
    by = federation(METHODS[name], BLOCKS, rounds=8)
    expected, _, _ = trained(by, Plain(), problems)
    # Values travel as float32, and error feedback makes up for it.
    found, _, _ = trained(by, Compressed(TopK(1.0)), problems)
    np.testing.assert_allclose(found.weights, expected.weights, atol=1e-5)
    longest = ClientNoise(0.0, 1e4)
    found, _, _ = trained(by, Noisy(longest, NoiseKey.generate()), problems)
    np.testing.assert_allclose(found.weights, expected.weights, atol=1.0)


CODED = [(TopK(0.34), "fedbcgd+"), (Quantizer(3), "fedbcgd+"), (Quantizer(3, 4), "scaffold")]


def require_mean_control(state: ServerState, kept: Kept) -> None:
    mean = np.sum([each.control for each in kept.values() if each.control is not None], 0) / 8
    np.testing.assert_allclose(state.control, mean, atol=1e-12)


@pytest.mark.parametrize(("compressor", "name"), CODED)
def test_control_variates_stay_their_mean(compressor: Compressor, name: str) -> None:
    problems = quadratics(8, 1)
    by = federation(METHODS[name], BLOCKS, rounds=20)
    state, kept, _ = trained(by, Compressed(compressor), problems)
    require_mean_control(state, kept)
    # Clipped far below what is computed.
    coding = Noisy(ClientNoise(0.0, 0.05), NoiseKey.generate())
    state, kept, _ = trained(by, coding, problems)
    require_mean_control(state, kept)


@pytest.mark.slow
@pytest.mark.parametrize(("compressor", "name"), CODED)
def test_with_control_variates_compressed_training_reaches_the_optimum(
    compressor: Compressor, name: str
) -> None:
    problems = quadratics(8, 1)
    by = federation(METHODS[name], BLOCKS, rounds=600, learning_rate=0.05)
    state, kept, _ = trained(by, Compressed(compressor), problems)
    require_mean_control(state, kept)
    assert off(state, problems) < 1e-3


def test_feddcs_drift_stays_the_mean_of_what_was_told() -> None:
    by = federation(METHODS["feddc"], BLOCKS, rounds=30)
    problems = quadratics(8, 2)
    state, kept, _ = trained(by, Compressed(TopK(0.25)), problems)
    mean = np.sum([each.drift for each in kept.values() if each.drift is not None], 0) / 8
    np.testing.assert_allclose(state.drift, mean, atol=1e-12)


def test_error_feedback_is_of_the_uploaded_entries_alone() -> None:
    problems = quadratics(8, 3)
    by = federation(METHODS["fedbcgd"], BLOCKS)
    coding, state = Compressed(TopK(0.2)), ServerState.start(np.zeros(PARAMETERS), by.method)
    first = by.assignments(0)[0]
    broadcast = state.broadcast(first)
    found = local_training(problems[first.client], by, broadcast, ClientState())
    _, kept = coding.seal(by, found.upload, broadcast, found.state)
    (errors,) = kept.memory.values()
    entries = BLOCKS.uploaded(first.block)
    # All but one, of which float32 rounds something off.
    assert np.count_nonzero(np.abs(errors[entries]) > 1e-6) == len(entries) - 1
    assert not np.any(np.delete(errors, entries))
    # The same change once more: what was left out is now twice as large.
    message, _ = coding.seal(by, found.upload, broadcast, kept)
    sent = TopK(0.2).decode(message.changes, len(entries))
    change = np.concatenate([found.upload.own, found.upload.shared])
    np.testing.assert_allclose(np.max(np.abs(sent)), np.max(np.abs(errors[entries] + change)))


def test_bytes_of_a_round_are_those_of_the_encoding() -> None:
    problems = quadratics(8, 4)
    by = federation(METHODS["fedbcgd"], BLOCKS, rounds=1)
    _, _, plain = trained(by, Plain(), problems, np.float32)
    _, _, coded = trained(by, Compressed(Quantizer(7)), problems, np.float32)
    # Of 7 entries: float32 each; or a norm and half a byte each. Beside them headers and lengths.
    assert plain > 4 * 7 * 4
    assert coded == 4 * (6 + 8 + 8 + 4 + 4 + 8)


def test_hostile_encodings_name_their_client() -> None:
    by = federation(METHODS["fedbcgd"], BLOCKS)
    state = ServerState.start(np.zeros(PARAMETERS), by.method)
    coding, client = Compressed(Quantizer(7)), by.assignments(0)[0].client
    right = Quantizer(7).encode(np.ones(7), np.random.default_rng(0))
    for message in (
        CompressedUpload(0, right + b"\0", b""),
        CompressedUpload(0, right, right),
        CompressedUpload(0, b"", b""),
    ):
        with pytest.raises(MalformedMessage, match=f"client {client}: "):
            coding.open(by, state, {client: message})


def test_noise_is_of_the_stated_deviation_on_every_sum() -> None:
    coding = Noisy(ClientNoise(1.5, 2.0), NoiseKey.generate())
    size = 20_000
    sums = Totals(np.full(size, 0.5), np.full(size, -0.5), (2, 2))
    noisy = coding.noisy(sums, np.zeros(1, np.float32))
    assert noisy.changes.dtype == noisy.controls.dtype == np.float32
    for found, mean in ((noisy.changes, 0.5), (noisy.controls, -0.5)):
        draws = (found.astype(np.float64) - mean) / (1.5 * 2 * 2.0)
        # Fresh in every run: each is off by six deviations with a chance of 2e-9.
        assert abs(np.mean(draws)) < 6 / np.sqrt(size)
        assert abs(np.std(draws) - 1) < 6 / np.sqrt(2 * size)


def test_what_the_server_hands_on_is_noisy() -> None:
    problems = quadratics(8, 5)
    by = federation(METHODS["fedbcgd+"], BLOCKS, rounds=1)
    noise = ClientNoise(1.0, 0.5)
    found = [trained(by, Noisy(noise, NoiseKey.generate()), problems)[0] for _ in range(2)]
    assert not np.any(found[0].weights == found[1].weights)
    assert not np.any(found[0].control == found[1].control)


@pytest.mark.parametrize("name", ["fedbcgd", "fedbcgd+"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_client_moves_the_sums_by_twice_the_length_at_most(name: str, dtype: type) -> None:
    problems = quadratics(8, 6)
    far = replace(problems[0], minima=problems[0].minima + 100)
    others = [replace(problems[0], minima=problems[0].minima - 100), *problems[1:]]
    by = federation(METHODS[name], BLOCKS)
    index = next(i for i in range(99) if any(a.client == 0 for a in by.assignments(i)))
    coding = Noisy(ClientNoise(0.0, 0.25), NoiseKey.generate())
    state = replace(
        ServerState.start(np.full(PARAMETERS, 3.0, dtype), by.method), round_index=index
    )
    sums: list[RealArray] = []
    for each in ([far, *problems[1:]], others):
        messages = {}
        for who in by.assignments(index):
            broadcast = state.broadcast(who)
            found = local_training(each[who.client], by, broadcast, ClientState())
            messages[who.client], _ = coding.seal(by, found.upload, broadcast, found.state)
        totals = coding.open(by, state, messages)
        sums.append(np.concatenate([totals.changes, totals.controls]).astype(np.float64))
    moved = float(np.linalg.norm(sums[0] - sums[1]))
    assert 0.4 < moved <= 2 * 0.25 * (1 + 1e-6)


def test_an_upload_that_is_too_long_is_refused() -> None:
    by = federation(METHODS["fedbcgd"], BLOCKS)
    state = ServerState.start(np.zeros(PARAMETERS), by.method)
    client, empty = by.assignments(0)[0].client, np.zeros(0)
    coding = Noisy(ClientNoise(1.0, 3.0), NoiseKey.generate())
    for own, refused in [(3.0, False), (3.001, True)]:
        message = BlockUpload(0, np.array([own, 0, 0, 0, 0]), np.zeros(2), empty, empty)
        rest = {
            each.client: BlockUpload(0, np.zeros(5), np.zeros(2), empty, empty)
            for each in by.assignments(0)[1:]
        }
        if not refused:
            coding.open(by, state, {client: message, **rest})
            continue
        with pytest.raises(PeerViolation, match=f"client {client} sent an upload of length 3.001"):
            coding.open(by, state, {client: message, **rest})


def test_control_variates_count_for_the_length_of_an_upload() -> None:
    by = federation(METHODS["fedbcgd+"], BLOCKS)
    state = ServerState.start(np.zeros(PARAMETERS), by.method)
    coding = Noisy(ClientNoise(1.0, 3.0), NoiseKey.generate())
    clients = [each.client for each in by.assignments(0)]
    for parts in ([0, 0, 3.001, 0], [0, 0, 0, 3.001], [3.0, 0, 0.1, 0]):
        sizes = 5, 2, 5, 2
        own, *others = (np.eye(1, size)[0] * part for size, part in zip(sizes, parts, strict=True))
        empty = BlockUpload(0, *(np.zeros(size) for size in sizes))
        messages = dict.fromkeys(clients, empty) | {clients[2]: BlockUpload(0, own, *others)}
        with pytest.raises(PeerViolation, match=f"client {clients[2]} sent an upload of length 3"):
            coding.open(by, state, messages)


def test_a_promise_counts_the_client_that_takes_part_most_often() -> None:
    by = federation(METHODS["fedbcgd"], BLOCKS, taking_part=8, clients=8)
    found = promise(by, ClientNoise(3.0, 1.0), 7, 1e-5)
    assert found.participations == 7
    assert found.known_sample == found.hidden_sample < inf
    assert promise(by, ClientNoise(3.0, 1.0), 0, 1e-5).known_sample == 0
    half = federation(METHODS["fedbcgd"], BLOCKS, taking_part=4, clients=8)
    often = promise(half, ClientNoise(0.0, 1.0), 9, 1e-5).participations
    drawn = [each.client for index in range(9) for each in half.assignments(index)]
    assert often == max(drawn.count(client) for client in range(8)) > 4


@pytest.mark.parametrize("name", METHODS)
def test_a_sample_hides_nobody_where_clients_remember(name: str) -> None:
    """What a client keeps ties its rounds together, and accountants take each for its own."""
    some, every = (
        promise(federation(METHODS[name], BLOCKS, taking_part=m, clients=60), NOISE, 9, 1e-5)
        for m in (2, 60)
    )
    if METHODS[name].corrects:
        assert some.hidden_sample == every.hidden_sample
    else:
        assert some.hidden_sample < every.hidden_sample / 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_masked_sums_can_be_of_clipped_uploads_and_noisy(dtype: type) -> None:
    problems = quadratics(8, 8)
    by = federation(METHODS["fedbcgd+"], BLOCKS, rounds=4)
    start: RealArray = np.zeros(PARAMETERS, dtype)

    def weights(multiplier: float) -> RealArray:
        noise = Noisy(ClientNoise(multiplier, 0.5), NoiseKey.generate())
        world = World(handing=Masked(noise=noise))
        return simulate_federation(problems, by, start, world).state.weights

    sealed, _, _ = trained(by, Noisy(ClientNoise(0.0, 0.5), NoiseKey.generate()), problems, dtype)
    np.testing.assert_allclose(weights(0.0), sealed.weights, atol=1e-5)
    assert weights(1.0).dtype == dtype
    assert not np.any(weights(1.0) == weights(1.0))


def test_a_clip_that_the_masks_fixed_point_cannot_hold_is_refused() -> None:
    by = federation(METHODS["fedbcgd"], BLOCKS)
    # Four roundings to 2^-40 have to stay below half a unit, clip/2^20.
    Masked(noise=Noisy(ClientNoise(1.0, 4.1 * 2.0**-20), NoiseKey.generate())).check(by)
    with pytest.raises(ConfigError, match="masked sums of 4 uploads need more"):
        Masked(noise=Noisy(ClientNoise(1.0, 4 * 2.0**-20), NoiseKey.generate())).check(by)
