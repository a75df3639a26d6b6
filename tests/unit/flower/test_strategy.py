"""The strategy, the client app and the mod over a grid that calls clients in this process."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra securevfl[flower] is not installed")

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from securevfl.arrays import RealArray
from securevfl.errors import ConfigError, MalformedMessage, PeerViolation, UnexpectedMessage
from securevfl.flower import FederationStrategy, UploadsBlock, arrays_of, client_app, vector_of
from securevfl.horizontal.codings import Coding, Noisy
from securevfl.horizontal.compression import Compressed, Quantizer, TopK
from securevfl.horizontal.federation import METHODS, Federation
from securevfl.horizontal.simulation import simulate_federation
from securevfl.privacy.clients import ClientNoise
from securevfl.privacy.streams import NoiseKey
from tests.flower_app import of, partition, problems, start
from tests.quadratics import first

CLIENTS, ROUNDS = 6, 10
Changes = Callable[[int, int, Message], Message]
"""Of a round, counted from 1, a partition and its reply: what the server gets."""


@pytest.fixture(autouse=True)
def running(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are made within a run alone."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class LocalGrid(Grid):
    """Calls every node's app; nodes have ids in the order of partitions."""

    def __init__(self, app: ClientApp, change: Changes = lambda _, __, reply: reply) -> None:
        self.app, self.change = app, change
        self.nodes = {
            10 * node + 7: Context(1, 10 * node + 7, {"partition-id": node}, RecordDict(), {})
            for node in range(CLIENTS)
        }
        self.sent: list[Message] = []
        self.got: list[Message] = []

    def get_node_ids(self) -> Iterable[int]:  # type: ignore[explicit-override]
        return list(reversed(self.nodes))

    def send_and_receive(  # type: ignore[explicit-override]
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        sent = list(messages)
        got = [self.answer(message) for message in sent]
        self.sent += sent
        self.got += got
        return got

    def answer(self, message: Message) -> Message:
        context = self.nodes[message.metadata.dst_node_id]
        index = int(str(message.content.config_records["config"]["server-round"]))
        return self.change(index, partition(context), self.app(message, context))

    def _unused(self, *_: Any, **__: Any) -> Any:  # noqa: ANN401
        raise AssertionError

    run = property(_unused)
    create_message = set_run = push_messages = pull_messages = _unused


def own_client(method: str, coding: Coding | None = None) -> ClientApp:
    every = problems(CLIENTS)
    return client_app(of(method, CLIENTS, ROUNDS), lambda each: every[partition(each)], coding)


def over(grid: Grid, method: str, coding: Coding | None = None) -> FederationStrategy:
    strategy = FederationStrategy(of(method, CLIENTS, ROUNDS), coding)
    result = strategy.start(grid, start(), num_rounds=ROUNDS)
    np.testing.assert_array_equal(vector_of(result.arrays), strategy.state.weights)
    return strategy


def expected(method: str, coding: Coding | None = None) -> RealArray:
    by = of(method, CLIENTS, ROUNDS)
    ended = simulate_federation(problems(CLIENTS), by, vector_of(start()), uploads=coding)
    return ended.state.weights


@pytest.mark.parametrize(
    ("method", "coding"),
    [*((method, None) for method in METHODS), ("fedbcgd+", Compressed(TopK(0.4)))],
)
def test_every_method_comes_to_what_our_own_simulation_comes_to(
    method: str, coding: Coding | None
) -> None:
    found = over(LocalGrid(own_client(method, coding)), method, coding)
    assert found.state.weights.dtype == np.float32
    np.testing.assert_allclose(found.state.weights, expected(method, coding), rtol=0, atol=1e-6)


def test_a_client_uploads_its_block_and_the_shared_one_alone() -> None:
    grid = LocalGrid(own_client("fedbcgd+"))
    over(grid, "fedbcgd+")
    assert len(grid.got) == ROUNDS * 4
    for reply in grid.got:
        (upload,) = reply.content.array_records.values()
        sizes = {name: array.shape for name, array in upload.items()}
        two = (5,), (2,)
        assert tuple(sizes.values()) == (*two, *two)


def gone(lost: Callable[[int, int], bool]) -> Changes:
    def change(index: int, partition: int, reply: Message) -> Message:
        if lost(index, partition):
            return Message(Error(code=0, reason="gone"), reply_to=reply)
        return reply

    return change


def test_a_lost_upload_leaves_means_and_control_variates_right() -> None:
    by = of("fedbcgd+", CLIENTS, ROUNDS)
    lost = [(index + 1, first(by, index)) for index in (0, 3, 4)]
    grid = LocalGrid(own_client("fedbcgd+"), gone(lambda *where: where in lost))
    state = over(grid, "fedbcgd+").state
    assert state.round_index == ROUNDS
    # What every client has that the server counted: what it made in its last counted round.
    every, counted = np.zeros(12), dict[int, int]()
    for index in range(ROUNDS):
        for client in by.assignments(index):
            if (index + 1, client) not in lost:
                counted[client] = index
    for node, last in counted.items():
        records = grid.nodes[10 * node + 7].state
        trained = records.config_records["securevfl round"]["index"]
        name = "securevfl new" if trained == last else "securevfl kept"
        every += records.array_records[name]["control"].numpy()
    np.testing.assert_allclose(state.control, every / CLIENTS, rtol=0, atol=1e-5)


def test_a_round_in_which_a_group_is_lost_changes_nothing_and_the_next_has_others() -> None:
    by = of("fedbcgd", CLIENTS, ROUNDS)
    lost = {client for client, block in by.assignments(1).items() if block == 0}
    grid = LocalGrid(own_client("fedbcgd"), gone(lambda index, who: index == 2 and who in lost))
    strategy = over(grid, "fedbcgd")
    assert strategy.state.round_index == ROUNDS
    models = [vector_of(message.content.array_records["arrays"]) for message in grid.sent[::4]]
    np.testing.assert_array_equal(models[1], models[2])
    assert not np.array_equal(models[2], models[3])
    blocks = [
        [m.content.config_records["securevfl"]["client"] for m in grid.sent[at : at + 4]]
        for at in (4, 8)
    ]
    assert blocks[0] != blocks[1]


# Anybody's clients


def anybodys(
    method: str,
    changed: Callable[[ArrayRecord], ArrayRecord] | None = None,
    mods: tuple[Mod, ...] = (UploadsBlock(),),
) -> ClientApp:
    """Trains the whole model by steps of its own and replies with it, as under Flower's FedAvg."""
    every, by = problems(CLIENTS), of(method, CLIENTS, ROUNDS)
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content.array_records["arrays"]
        index = int(str(message.content.config_records["config"]["server-round"])) - 1
        weights, rows = vector_of(arrays), every[partition(context)].rows
        size = np.float32(by.settings.step_size(index))
        for batch in by.settings.batches(partition(context), rows, index):
            weights = weights - size * every[partition(context)].gradient(weights, batch)
        trained = arrays_of(weights, arrays)
        content: Mapping[str, Any] = {
            "arrays": trained if changed is None else changed(trained),
            "metrics": MetricRecord({"num-examples": rows}),
        }
        return Message(RecordDict(dict(content)), reply_to=message)

    return app


@pytest.mark.parametrize("method", ["fedavg", "fedavgm", "fedbcgd"])
def test_a_client_of_flowers_own_kind_takes_part_through_the_mod(method: str) -> None:
    grid = LocalGrid(anybodys(method))
    found = over(grid, method)
    np.testing.assert_allclose(found.state.weights, expected(method), rtol=0, atol=1e-6)
    assert all("arrays" not in reply.content for reply in grid.got)
    assert grid.got[0].content.metric_records["metrics"]["num-examples"] == 10


def test_the_mod_says_what_it_cannot_do_and_a_client_without_it_is_refused() -> None:
    with pytest.raises(PeerViolation, match="uploaded no block"):
        over(LocalGrid(anybodys("fedbcgd", mods=())), "fedbcgd")

    def other(arrays: ArrayRecord) -> ArrayRecord:
        return ArrayRecord({"w": Array(np.zeros(3, np.float32))})

    with pytest.raises(MalformedMessage, match="not the model that was sent"):
        over(LocalGrid(anybodys("fedbcgd", other)), "fedbcgd")


@pytest.mark.parametrize("method", ["scaffold", "fedbcgd+"])
def test_the_mod_ends_a_run_with_control_variates_before_anybody_trains(method: str) -> None:
    grid = LocalGrid(anybodys(method))
    with pytest.raises(PeerViolation, match=r"node \d+ uses UploadsBlock, which cannot correct"):
        over(grid, method)
    assert len(grid.sent) == 4
    assert not any(reply.content.array_records for reply in grid.got)


def test_other_strategies_messages_pass_the_mod_untouched() -> None:
    message = Message(RecordDict({"config": ConfigRecord({"server-round": 1})}), 7, "train")
    context = Context(1, 7, {}, RecordDict(), {})
    reply = Message(RecordDict(), reply_to=message)
    assert UploadsBlock()(message, context, lambda *_: reply) is reply


# Refusals


def swapped(**arrays: RealArray | Array) -> Changes:
    def change(_: int, __: int, reply: Message) -> Message:
        for name, values in arrays.items():
            sent = values if isinstance(values, Array) else Array(values)
            reply.content.array_records["upload"][name] = sent
        return reply

    return change


def float32(*values: float) -> RealArray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("change", "error", "refused"),
    [
        (swapped(own=float32(1)), UnexpectedMessage, "sent an array of"),
        (swapped(own=np.zeros(5)), UnexpectedMessage, "float64"),
        (swapped(own=float32(0, 0, 0, 0, np.nan)), MalformedMessage, "NaN"),
        (swapped(own=np.zeros((5, 1), np.float32)), MalformedMessage, "where a vector is expected"),
        (swapped(own=np.zeros(5, np.int64)), MalformedMessage, "int64 where floats are expected"),
        (swapped(more=float32(1)), MalformedMessage, "own, shared"),
        (
            swapped(own=Array("float32", (5,), "numpy.ndarray", b"x")),
            MalformedMessage,
            "NumPy cannot read",
        ),
        (swapped(own_control=np.zeros(5, np.float32)), UnexpectedMessage, "sent an array of"),
    ],
)
def test_an_upload_that_does_not_fit_is_refused(
    change: Changes, error: type[Exception], refused: str
) -> None:
    with pytest.raises(error, match=refused):
        over(LocalGrid(own_client("fedbcgd"), change), "fedbcgd")


@pytest.mark.parametrize("extra", ["twice", "not asked"])
def test_a_node_uploads_once_and_where_it_was_asked(extra: str) -> None:
    strategy = FederationStrategy(of("fedbcgd", CLIENTS, ROUNDS))
    grid = LocalGrid(own_client("fedbcgd"))
    sent = list(strategy.configure_train(1, start(), ConfigRecord(), grid))
    replies = list(grid.send_and_receive(sent))
    other = sent[0]
    if extra == "not asked":
        idle = min(set(grid.nodes) - {message.metadata.dst_node_id for message in sent})
        other = Message(sent[0].content, idle, "train")
    replies.append(grid.answer(other))
    with pytest.raises(PeerViolation, match="was not asked for an upload, or sent another"):
        strategy.aggregate_train(1, replies)


def test_orders_and_arrays_that_do_not_fit_are_refused() -> None:
    """Of a strategy that says it has the same federation."""
    grid = LocalGrid(own_client("fedbcgd+"))
    over(grid, "fedbcgd+")
    message, context = grid.sent[0], next(iter(grid.nodes.values()))
    small = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    orders = message.content.config_records["securevfl"]
    for name, record, refused in (
        ("arrays", small, r"θ of \(3,\)"),
        ("control", small, r"κ of \(3,\)"),
        ("securevfl", ConfigRecord({**orders, "block": 2}), "and block 2, where"),
        ("securevfl", ConfigRecord({**orders, "block": -1}), "and block -1, where"),
        ("securevfl", ConfigRecord({**orders, "agreed": 2}), "orders without a digest"),
    ):
        content = RecordDict({**message.content, name: record})
        with pytest.raises(PeerViolation, match=refused):
            grid.app(Message(content, 7, "train"), context)
    for name in ("arrays", "control"):
        content = RecordDict({key: each for key, each in message.content.items() if key != name})
        with pytest.raises(MalformedMessage, match=f"without the arrays '{name}'"):
            grid.app(Message(content, 7, "train"), context)


def test_both_ends_have_to_mean_the_same_federation() -> None:
    """What a federation's digest covers see test_simulation of horizontal training."""
    ours = of("fedbcgd", CLIENTS, ROUNDS)
    others: list[tuple[Federation, Coding | None]] = [
        (replace(ours, settings=replace(ours.settings, seed=1)), None),
        (of("fedavg", CLIENTS, ROUNDS), None),
        (ours, Compressed(TopK(0.4))),
    ]
    for federation, coding in others:
        grid = LocalGrid(client_app(federation, lambda _: problems(CLIENTS)[0], coding))
        with pytest.raises(PeerViolation, match=r"node \d+ is in another federation: its app has "):
            over(grid, "fedbcgd")
        assert len(grid.sent) == 4
    other = Compressed(Quantizer(5))
    with pytest.raises(PeerViolation, match=r"uploads compressed by Quantizer\(levels=5"):
        over(LocalGrid(own_client("fedbcgd", other)), "fedbcgd", Compressed(Quantizer(7)))
    for noises in ((1.0, 1.0), (1.0, 2.0)):
        ends = [Noisy(ClientNoise(0.1, clip), NoiseKey.generate()) for clip in noises]
        mismatch = "another federation" if len(set(noises)) > 1 else None
        with pytest.raises(PeerViolation, match=mismatch) if mismatch else nullcontext():
            over(LocalGrid(own_client("fedbcgd", ends[0])), "fedbcgd", ends[1])
    small = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    with pytest.raises(ConfigError, match="12 parameters, the initial arrays 3"):
        FederationStrategy(of("fedbcgd", CLIENTS, 1)).start(
            LocalGrid(own_client("fedbcgd")), small, num_rounds=1
        )
    with pytest.raises(ConfigError, match="no round has begun"):
        FederationStrategy(of("fedbcgd", CLIENTS, 1)).state  # noqa: B018
