"""Server and clients over the project's channel: the same numbers, counted, and faults."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from securevfl.arrays import RealArray
from securevfl.errors import (
    ConfigError,
    MalformedMessage,
    PeerTimeout,
    TrainingDiverged,
    UnexpectedMessage,
)
from securevfl.horizontal.codings import BlockUpload, Plain
from securevfl.horizontal.federation import METHODS, Blocks, Federation
from securevfl.horizontal.secure_aggregation import Masked, MaskedUpload, Ready
from securevfl.horizontal.simulation import (
    ModelSent,
    ScoringRule,
    ServerEnd,
    floats_of_round,
    serve,
    simulate_federation,
    take_part,
)
from securevfl.runtime.channel import Channel, ChannelAround
from securevfl.runtime.costs import Costs, FixedCosts
from securevfl.runtime.line import PRESETS
from securevfl.runtime.simulation import Program, Tamper, simulate
from securevfl.wire.codec import Message, StepMessage, decode
from tests.quadratics import PARAMETERS, Quadratic, federation, first, quadratics, run
from tests.tampering import changed

BLOCKS = Blocks.equal({"first": 4, "second": 5, "last": 3}, 2, ["last"])
START = np.zeros(PARAMETERS)


@pytest.fixture(scope="module")
def problems() -> list[Quadratic]:
    return quadratics(8, 1)


def lost(kind: type[StepMessage], client: int, *rounds: int) -> Tamper:
    """Loses what a client sends in some rounds."""
    return changed(kind, lambda it: None if it.step in rounds else it, f"client-{client}")


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_messages_change_nothing(
    problems: list[Quadratic], name: str, dtype: type[np.float32 | np.float64]
) -> None:
    by = federation(METHODS[name], BLOCKS, rounds=6)
    start: RealArray = START.astype(dtype)
    ended = simulate_federation(problems, by, start)
    alone, _ = run(problems, by, start)
    np.testing.assert_array_equal(ended.state.weights, alone.weights)
    np.testing.assert_array_equal(ended.state.control, alone.control)
    assert ended.state.weights.dtype == dtype


@pytest.mark.parametrize("name", METHODS)
def test_what_travels_is_what_was_counted_offline(problems: list[Quadratic], name: str) -> None:
    by = federation(METHODS[name], BLOCKS, rounds=4)
    paper, up = floats_of_round(by)
    down = 4 * PARAMETERS * (1 + by.method.corrects)
    ended = simulate_federation(problems, by, START.astype(np.float32))
    assert len(ended.rounds) == 4
    blocks = len(by.blocks)
    for each in ended.rounds:
        assert (each.up_floats, each.down_floats) == (up, down)
        assert each.paper_floats == pytest.approx(paper)
        assert each.gradients == 4 * 3 * (2 if name == "fedbcgd+:printed" else 1)
        sizes = [len(by.blocks.uploaded(block)) for block in range(blocks)]
        assert sum(sizes) * 4 // blocks * (1 + by.method.corrects) == up
        # Header and step, then four arrays with a byte of precision, one of dimensions, one extent.
        assert each.up_bytes == 4 * (6 + 8 + 4 * 10) + 4 * up
        assert each.down_bytes == 4 * (6 + 8 + 8 + 2 * 10 + 1) + 4 * down


def test_a_run_repeats_and_another_seed_is_another_run(problems: list[Quadratic]) -> None:
    by = federation(METHODS["fedbcgd+"], BLOCKS, rounds=5)
    timed = partial(simulate_federation, problems, stopwatch=FixedCosts({"local": 0.25}))
    first, second = (timed(by, START) for _ in range(2))
    np.testing.assert_array_equal(first.state.weights, second.state.weights)
    assert first.rounds == second.rounds
    other = timed(replace(by, settings=replace(by.settings, seed=9)), START)
    assert other.rounds[0].clients != first.rounds[0].clients
    # Clients compute side by side: training and sealing, opening and averaging, a section each.
    assert first.rounds[-1].ends_s == pytest.approx(5 * 4 * 0.25, abs=0.1)


def test_only_clients_that_take_part_hear_of_a_round(problems: list[Quadratic]) -> None:
    by = federation(METHODS["fedbcgd"], BLOCKS, rounds=4)
    heard: list[tuple[str, int, bool]] = []

    def listen(sender: str, to: str, data: bytes) -> bytes:
        message = decode(data)
        if isinstance(message, ModelSent):
            assert sender == "server"
            heard.append((to, message.step, message.ended))
        return data

    simulate_federation(problems, by, START, tamper=listen)
    ends = [each for each in heard if each[2]]
    assert ends == [(f"client-{client}", 4, True) for client in range(8)]
    expected = [
        (f"client-{client}", index, False) for index in range(4) for client in by.assignments(index)
    ]
    assert heard[: -len(ends)] == expected


def test_scores_come_when_they_are_due_and_a_target_ends_training(
    problems: list[Quadratic],
) -> None:
    by = federation(METHODS["fedavg"], BLOCKS, rounds=7)
    scoring = ScoringRule(lambda weights: float(-np.linalg.norm(weights - 5)), every=3)
    ended = simulate_federation(problems, by, START, scoring=scoring)
    assert [each.score is not None for each in ended.rounds] == [*[False, False, True] * 2, True]
    scoring = replace(scoring, target=ended.rounds[2].score)
    reached = simulate_federation(problems, by, START, scoring=scoring)
    assert len(reached.rounds) == 3
    assert reached.state.round_index == 3


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda it: replace(it, own=it.own[1:]), UnexpectedMessage, r"client \d sent an array"),
        (lambda it: replace(it, shared=it.shared[None]), UnexpectedMessage, r"where \(3,\) is"),
        (
            lambda it: replace(it, own_control=it.own),
            UnexpectedMessage,
            "where \\(0,\\) is expected",
        ),
        (lambda it: replace(it, shared_control=it.own), UnexpectedMessage, "is expected"),
        (
            lambda it: replace(it, own=it.own.astype(np.float32)),
            UnexpectedMessage,
            "sent float32 where float64 is expected",
        ),
        (lambda it: replace(it, own=it.own * np.nan), MalformedMessage, r"client-\d: an array"),
        (lambda it: replace(it, step=0), UnexpectedMessage, "step 0 where step 1 is expected"),
        (lambda it: replace(it, own=it.own + 1.7e308), TrainingDiverged, "diverged in round 1"),
    ],
)
def test_uploads_that_do_not_fit_are_refused(
    problems: list[Quadratic],
    change: Callable[[BlockUpload], BlockUpload],
    error: type[Exception],
    says: str,
) -> None:
    by = federation(METHODS["fedbcgd"], BLOCKS, rounds=3)
    tamper = changed(BlockUpload, change, step=1)
    with pytest.raises(error, match=says):
        simulate_federation(problems, by, START, tamper=tamper)


class Twice(ChannelAround):
    """Of a client that uploads everything once more."""

    @override
    async def send(self, to: str, message: Message) -> None:
        for _ in range(1 + isinstance(message, BlockUpload)):
            await super().send(to, message)


def with_an_odd_client(
    problems: list[Quadratic],
    by: Federation,
    uploads: Plain | Masked,
    around: Callable[[Channel], Channel] = lambda channel: channel,
    odd: Federation | None = None,
) -> ServerEnd:
    """What the server is left with where client 3 has another channel or federation."""

    async def client(channel: Channel, costs: Costs, number: int) -> object:
        return await take_part(
            around(channel) if number == 3 else channel,
            costs,
            client=number,
            problem=problems[number],
            federation=odd or by if number == 3 else by,
            uploads=uploads,
            dtype=START.dtype,
        )

    programs: dict[str, Program[Any]] = {
        f"client-{number}": partial(client, number=number) for number in range(8)
    }
    programs["server"] = partial(
        serve, federation=by, start=START, uploads=uploads, scoring=ScoringRule()
    )
    ended: ServerEnd = simulate(programs, PRESETS["lan"]).results["server"]
    return ended


def test_an_upload_is_counted_once(problems: list[Quadratic]) -> None:
    by = federation(METHODS["fedbcgd"], BLOCKS, rounds=2, taking_part=8)
    with pytest.raises(UnexpectedMessage, match="client-3 sent BlockUpload of step 0 where step 1"):
        with_an_odd_client(problems, by, Plain(), Twice)


def test_masks_cancel_within_one_federation_alone(problems: list[Quadratic]) -> None:
    by = federation(METHODS["fedavg"], BLOCKS, rounds=1, taking_part=8)
    plain = simulate_federation(problems, by, START).state.weights
    # The same steps, in a federation of more rounds.
    odd = replace(by, settings=replace(by.settings, rounds=2))
    for other, off in ((by, False), (odd, True)):
        found = with_an_odd_client(problems, by, Masked(), odd=other).state.weights
        assert bool(np.all(np.abs(found - plain) > 1e-3)) == off


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda it: replace(it, step=0), "server sent round 0 where one from 1 to 2 was expected"),
        (lambda it: replace(it, step=3), "server sent round 3"),
        (lambda it: replace(it, block=2), "server asked for block 2 of 2"),
        (lambda it: replace(it, weights=it.weights[1:]), r"server sent an array of \(11,\)"),
        (lambda it: replace(it, control=it.weights), r"where \(0,\) is expected"),
        (
            lambda it: replace(it, weights=it.weights.astype(np.float32)),
            "where float64 is expected",
        ),
    ],
)
def test_models_that_do_not_fit_are_refused(
    problems: list[Quadratic], change: Callable[[ModelSent], ModelSent], says: str
) -> None:
    # All take part in every round, so that all have been in one before.
    by = federation(METHODS["fedbcgd"], BLOCKS, rounds=3, taking_part=8)
    tamper = changed(ModelSent, change, receiver="client-3", step=1)
    with pytest.raises(UnexpectedMessage, match=says):
        simulate_federation(problems, by, START, tamper=tamper)


def test_what_does_not_belong_together_is_refused(problems: list[Quadratic]) -> None:
    by = federation(METHODS["fedbcgd"], BLOCKS, rounds=1)
    with pytest.raises(ConfigError, match="7 problems: expected one of each 8"):
        simulate_federation(problems[:7], by, START)
    with pytest.raises(ConfigError, match="blocks hold 12 parameters"):
        simulate_federation(problems, by, np.zeros(11))


def test_federations_that_differ_in_anything_have_other_digests() -> None:
    by = federation(METHODS["fedbcgd"], BLOCKS, rounds=1)
    others = [
        replace(by, settings=replace(by.settings, seed=3)),
        replace(by, settings=replace(by.settings, clip=10.0)),
        replace(by, method=replace(by.method, momentum=0.5)),
        replace(by, blocks=Blocks.equal({"first": 4, "second": 5, "last": 3}, 2)),
        replace(by, blocks=Blocks(BLOCKS.own[::-1], BLOCKS.shared)),
    ]
    assert len({each.digest for each in (by, *others)}) == 6
    assert by.digest == federation(METHODS["fedbcgd"], BLOCKS, rounds=1).digest
    numpys_own: Any = np.int64(3)
    same = replace(by.settings, epochs=numpys_own, decay=1, learning_rate=np.float64(0.1))
    assert by.digest == replace(by, settings=same).digest


@pytest.mark.parametrize("name", ["fedavg", "fedbcgd", "fedbcgd+", "feddc"])
def test_masked_sums_are_the_sums(problems: list[Quadratic], name: str) -> None:
    by = federation(METHODS[name], BLOCKS, rounds=4)
    plain = simulate_federation(problems, by, START)
    masked = simulate_federation(problems, by, START, uploads=Masked())
    # Sums to 40 bits after the point, a few rounds of them.
    np.testing.assert_allclose(masked.state.weights, plain.state.weights, atol=1e-9)
    np.testing.assert_allclose(masked.state.control, plain.state.control, atol=1e-9)
    keys = 4 * 32 / 4
    assert masked.rounds[0].up_floats == plain.rounds[0].up_floats + keys
    assert masked.rounds[0].up_bytes > 2 * 4 * plain.rounds[0].up_floats


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), "60", Plain()])
def test_a_timeout_that_is_no_time_and_noise_that_is_none_are_refused(wrong: Any) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match="timeout_seconds = "):
        Masked(wrong)
    with pytest.raises(ConfigError, match="noise = "):
        Masked(noise=wrong)


def test_a_group_of_one_cannot_be_masked(problems: list[Quadratic]) -> None:
    by = federation(METHODS["fedbcgd"], BLOCKS, rounds=1, taking_part=2)
    says = "at least 2 clients.* a sum of one upload is that upload; take more clients"
    with pytest.raises(ConfigError, match=says):
        simulate_federation(problems, by, START, uploads=Masked())


def test_a_client_that_is_late_is_in_no_masked_sum_and_keeps_its_state(
    problems: list[Quadratic],
) -> None:
    by = federation(METHODS["fedbcgd+"], BLOCKS, rounds=3, taking_part=8)
    late = first(by, 1)
    uploads, tamper = Masked(timeout_seconds=60.0), lost(Ready, late, 1)
    ended = simulate_federation(problems, by, START, uploads=uploads, tamper=tamper)
    state, _ = run(problems, by, lost=[(late, 1)])
    np.testing.assert_allclose(ended.state.weights, state.weights, atol=1e-9)
    np.testing.assert_allclose(ended.state.control, state.control, atol=1e-9)


@pytest.mark.parametrize(
    ("uploads", "kind", "index", "told"),
    [
        (Plain(), BlockUpload, 1, "server for BlockUpload from client-{}"),
        # Gone after the roster, and before it, where a group is left with one.
        (Masked(60.0), MaskedUpload, 0, "MaskedUpload from client-{}"),
        (Masked(60.0), Ready, 0, "block {}: fewer than 2"),
    ],
)
def test_a_client_that_is_gone_ends_the_run_by_its_name_or_its_groups(
    problems: list[Quadratic],
    uploads: Plain | Masked,
    kind: type[StepMessage],
    index: int,
    told: str,
) -> None:
    by = federation(METHODS["fedbcgd"], BLOCKS, rounds=3)
    gone = first(by, index)
    named = by.assignments(index)[gone] if kind is Ready else gone
    tamper = lost(kind, gone, index, index + 1)
    with pytest.raises(PeerTimeout, match=told.format(named)):
        simulate_federation(problems, by, START, uploads=uploads, tamper=tamper)


def test_who_learns_what_depends_on_how_uploads_travel() -> None:
    method = METHODS["fedbcgd+"]
    assert Plain().learns(method) == method.learns
    assert "no single upload" in Masked().learns(method)["server"]
