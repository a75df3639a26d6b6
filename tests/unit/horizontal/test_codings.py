from contextlib import nullcontext
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from securevfl.arrays import RealArray
from securevfl.errors import ConfigError, MalformedMessage, PeerViolation
from securevfl.horizontal.client import ClientState, local_training
from securevfl.horizontal.codings import BlockUpload, Noisy, Plain, promise
from securevfl.horizontal.compression import (
    Compressed,
    CompressedUpload,
    Compressor,
    Quantizer,
    TopK,
)
from securevfl.horizontal.federation import METHODS, Blocks, Federation
from securevfl.horizontal.secure_aggregation import Masked
from securevfl.horizontal.server import ServerState, Totals
from securevfl.horizontal.simulation import simulate_federation
from securevfl.privacy.clients import ClientNoise
from securevfl.privacy.streams import NoiseKey
from tests.quadratics import (
    PARAMETERS,
    Quadratic,
    broadcast,
    federation,
    first,
    optimum,
    quadratics,
    run,
)

BLOCKS = Blocks.equal({"first": 6, "second": 4, "last": 2}, 2, shared=["last"])
Kept = dict[int, ClientState]
NOISE = ClientNoise(3.0, 1.0)


def noisy(multiplier: float, clip: float) -> Noisy:
    return Noisy(ClientNoise(multiplier, clip), NoiseKey.generate())


def begin(by: Federation) -> ServerState:
    return ServerState.start(np.zeros(PARAMETERS), by.method)


def off(state: ServerState, problems: list[Quadratic]) -> float:
    return float(np.linalg.norm(state.weights - optimum(problems)))


@pytest.mark.parametrize("name", ["fedavg", "fedbcgd", "fedbcgd+", "scaffold", "feddc"])
def test_everything_kept_is_what_plain_uploads_come_to(name: str) -> None:
    problems = quadratics(8, 0)
    by = federation(METHODS[name], BLOCKS, rounds=8)
    expected, _ = run(problems, by)
    # Values travel as float32, and error feedback makes up for it.
    found, _ = run(problems, by, coding=Compressed(TopK(1.0)))
    np.testing.assert_allclose(found.weights, expected.weights, atol=1e-5)
    found, _ = run(problems, by, coding=noisy(0.0, 1e4))
    np.testing.assert_allclose(found.weights, expected.weights, atol=1.0)


CODED = [(TopK(0.34), "fedbcgd+"), (Quantizer(3), "fedbcgd+"), (Quantizer(3, 4), "scaffold")]


def require_mean_control(state: ServerState, kept: Kept) -> None:
    mean = np.sum([each.control for each in kept.values() if each.control is not None], 0) / 8
    np.testing.assert_allclose(state.control, mean, atol=1e-12)


@pytest.mark.parametrize(("compressor", "name"), CODED)
def test_control_variates_stay_their_mean(compressor: Compressor, name: str) -> None:
    problems = quadratics(8, 1)
    by = federation(METHODS[name], BLOCKS, rounds=20)
    # Clipped far below what is computed.
    for coding in (Compressed(compressor), noisy(0.0, 0.05)):
        require_mean_control(*run(problems, by, coding=coding))


@pytest.mark.slow
@pytest.mark.parametrize(("compressor", "name"), CODED)
def test_with_control_variates_compressed_training_reaches_the_optimum(
    compressor: Compressor, name: str
) -> None:
    problems = quadratics(8, 1)
    by = federation(METHODS[name], BLOCKS, rounds=600, learning_rate=0.05)
    state, kept = run(problems, by, coding=Compressed(compressor))
    require_mean_control(state, kept)
    assert off(state, problems) < 1e-3


def test_feddcs_drift_stays_the_mean_of_what_was_sent() -> None:
    by = federation(METHODS["feddc"], BLOCKS, rounds=30)
    problems = quadratics(8, 2)
    state, kept = run(problems, by, coding=Compressed(TopK(0.25)))
    mean = np.sum([each.drift for each in kept.values() if each.drift is not None], 0) / 8
    np.testing.assert_allclose(state.drift, mean, atol=1e-12)


def test_error_feedback_is_of_the_uploaded_entries_alone() -> None:
    problems = quadratics(8, 3)
    by = federation(METHODS["fedbcgd"], BLOCKS)
    coding, client = Compressed(TopK(0.2)), first(by)
    given = broadcast(by, begin(by), client)
    found = local_training(problems[client], by, given, ClientState())
    _, kept = coding.seal(by, found.upload, given, found.state)
    (errors,) = kept.memory.values()
    entries = BLOCKS.uploaded(given.block)
    # All but one, of which float32 rounds something off.
    assert np.count_nonzero(np.abs(errors[entries]) > 1e-6) == len(entries) - 1
    assert not np.any(np.delete(errors, entries))
    # The same change once more: what was left out is now twice as large.
    message, _ = coding.seal(by, found.upload, given, kept)
    sent = TopK(0.2).decode(message.changes, len(entries))
    due = errors[entries] + found.upload.changes
    np.testing.assert_allclose(np.max(np.abs(sent)), np.max(np.abs(due)))


def test_bytes_of_a_round_are_those_of_the_encoding() -> None:
    problems = quadratics(8, 4)
    by = federation(METHODS["fedbcgd"], BLOCKS, rounds=1)
    plain, coded = list[bytes](), list[bytes]()
    run(problems, by, np.zeros(PARAMETERS, np.float32), Plain(), sent=plain)
    run(problems, by, np.zeros(PARAMETERS, np.float32), Compressed(Quantizer(7)), sent=coded)
    # Of 7 entries: float32 each; or a norm and half a byte each. Beside them headers and lengths.
    assert sum(map(len, plain)) > 4 * 7 * 4
    assert [len(data) for data in coded] == [6 + 8 + 8 + 4 + 4 + 8] * 4


def test_hostile_encodings_name_their_client() -> None:
    by = federation(METHODS["fedbcgd"], BLOCKS)
    coding, client = Compressed(Quantizer(7)), first(by)
    right = Quantizer(7).encode(np.ones(7), np.random.default_rng(0))
    for message in (
        CompressedUpload(0, right + b"\0", b""),
        CompressedUpload(0, right, right),
        CompressedUpload(0, b"", b""),
    ):
        with pytest.raises(MalformedMessage, match=f"client {client}: "):
            coding.open(by, begin(by), {client: message})


def test_noise_is_of_the_stated_deviation_on_every_sum() -> None:
    coding = noisy(1.5, 2.0)
    size = 20_000
    sums = Totals(np.full(size, 0.5), np.full(size, -0.5), (2, 2))
    noised = coding.noisy(sums, np.zeros(1, np.float32))
    assert noised.changes.dtype == noised.controls.dtype == np.float32
    for found, mean in ((noised.changes, 0.5), (noised.controls, -0.5)):
        draws = (found.astype(np.float64) - mean) / (1.5 * 2 * 2.0)
        # Fresh in every run: each is off by six deviations with a chance of 2e-9.
        assert abs(np.mean(draws)) < 6 / np.sqrt(size)
        assert abs(np.std(draws) - 1) < 6 / np.sqrt(2 * size)


def test_what_the_server_hands_on_is_noisy() -> None:
    problems = quadratics(8, 5)
    by = federation(METHODS["fedbcgd+"], BLOCKS, rounds=1)
    found = [run(problems, by, coding=noisy(1.0, 0.5))[0] for _ in range(2)]
    assert not np.any(found[0].weights == found[1].weights)
    assert not np.any(found[0].control == found[1].control)


@pytest.mark.parametrize("name", ["fedbcgd", "fedbcgd+"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_client_moves_the_sums_by_twice_the_length_at_most(name: str, dtype: type) -> None:
    problems = quadratics(8, 6)
    far = replace(problems[0], minima=problems[0].minima + 100)
    others = [replace(problems[0], minima=problems[0].minima - 100), *problems[1:]]
    by = federation(METHODS[name], BLOCKS)
    index = next(i for i in range(99) if 0 in by.assignments(i))
    coding = noisy(0.0, 0.25)
    state = replace(
        ServerState.start(np.full(PARAMETERS, 3.0, dtype), by.method), round_index=index
    )
    sums: list[RealArray] = []
    for each in ([far, *problems[1:]], others):
        messages = {}
        for client in by.assignments(index):
            given = broadcast(by, state, client)
            found = local_training(each[client], by, given, ClientState())
            messages[client], _ = coding.seal(by, found.upload, given, found.state)
        totals = coding.open(by, state, messages)
        sums.append(np.concatenate([totals.changes, totals.controls]).astype(np.float64))
    moved = float(np.linalg.norm(sums[0] - sums[1]))
    assert 0.4 < moved <= 2 * 0.25 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("name", "parts", "refused"),
    [
        ("fedbcgd", (3.0, 0, 0, 0), False),
        ("fedbcgd", (3.001, 0, 0, 0), True),
        ("fedbcgd+", (0, 0, 3.001, 0), True),
        ("fedbcgd+", (0, 0, 0, 3.001), True),
        ("fedbcgd+", (3.0, 0, 0.1, 0), True),
    ],
)
def test_an_upload_that_is_too_long_with_its_control_variates_is_refused(
    name: str, parts: tuple[float, ...], refused: bool
) -> None:
    by = federation(METHODS[name], BLOCKS)
    clients = list(by.assignments(0))
    sizes = (5, 2, 5, 2) if by.method.corrects else (5, 2, 0, 0)
    empty = [np.zeros(size) for size in sizes]
    long = [part * np.eye(1, size)[0] for size, part in zip(sizes, parts, strict=True)]
    messages = dict.fromkeys(clients, BlockUpload(0, *empty))
    messages |= {clients[2]: BlockUpload(0, *long)}
    says = f"client {clients[2]} sent an upload of length 3"
    with pytest.raises(PeerViolation, match=says) if refused else nullcontext():
        noisy(1.0, 3.0).open(by, begin(by), messages)


def test_an_upload_off_the_grid_of_noise_is_put_on_it() -> None:
    """Noise on a grid hides nothing of what lies between its points."""
    by, coding = federation(METHODS["fedbcgd"], BLOCKS), noisy(1.0, 3.0)
    own, shared = (np.full(size, 7.3 * coding.unit) for size in (5, 2))
    message = BlockUpload(0, own, shared, np.zeros(0), np.zeros(0))
    upload = coding.read(by, first(by), 0, message, np.zeros(PARAMETERS))
    assert np.array_equal(upload.changes, np.full(7, 7 * coding.unit))


def test_a_promise_counts_the_client_that_takes_part_most_often() -> None:
    by = federation(METHODS["fedbcgd"], BLOCKS, taking_part=8, clients=8)
    found = promise(by, ClientNoise(3.0, 1.0), 7, 1e-5)
    assert found.participations == 7
    assert found.known_sample == found.hidden_sample < inf
    assert promise(by, ClientNoise(3.0, 1.0), 0, 1e-5).known_sample == 0
    half = federation(METHODS["fedbcgd"], BLOCKS, taking_part=4, clients=8)
    often = promise(half, ClientNoise(0.0, 1.0), 9, 1e-5).participations
    drawn = [client for index in range(9) for client in half.assignments(index)]
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
        uploads = Masked(noise=noisy(multiplier, 0.5))
        return simulate_federation(problems, by, start, uploads=uploads).state.weights

    sealed, _ = run(problems, by, start, noisy(0.0, 0.5))
    np.testing.assert_allclose(weights(0.0), sealed.weights, atol=1e-5)
    assert weights(1.0).dtype == dtype
    assert not np.any(weights(1.0) == weights(1.0))


def test_a_clip_that_the_masks_fixed_point_cannot_hold_is_refused() -> None:
    by = federation(METHODS["fedbcgd"], BLOCKS)
    # Four roundings to 2^-40 have to stay below half a unit, clip/2^20.
    Masked(noise=noisy(1.0, 4.1 * 2.0**-20)).check(by)
    with pytest.raises(ConfigError, match="masked sums of 4 uploads need more"):
        Masked(noise=noisy(1.0, 4 * 2.0**-20)).check(by)
