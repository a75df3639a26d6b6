"""FedBCGD, FedBCGD+ and their baselines on Flower (extra `securevfl[flower]`).

`FederationStrategy` assigns blocks and averages, `client_app` trains. Both call the functions of
`securevfl.horizontal`, as the project's own simulation does. `UploadsBlock` is a mod for clients of
other projects: they train as before and upload only their block.

Arrays travel in NumPy's own format, which Flower reads without pickle. Data from peers are checked
before use.

Learns:
    SuperLink and ServerApp: what `Method.learns` says of a server: every single upload. There is no
        secure aggregation on Flower; TLS between SuperLink and SuperNodes is Flower's own.
    clients: as `Method.learns` says.
Source: see `horizontal.federation`.
"""

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain, pairwise
from logging import getLogger
from math import prod
from typing import Any, Self, TypeVar

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import IntArray, RealArray
from securevfl.errors import (
    ConfigError,
    DataError,
    MalformedMessage,
    PeerViolation,
    UnexpectedMessage,
)
from securevfl.horizontal.client import Broadcast, ClientProblem, ClientState, local_training
from securevfl.horizontal.codings import BlockUpload, Coding, Plain
from securevfl.horizontal.federation import Federation
from securevfl.horizontal.server import ServerState, aggregate
from securevfl.wire.codec import StepMessage

__all__ = [
    "FederationStrategy",
    "UploadsBlock",
    "arrays_of",
    "client_app",
    "sizes_of",
    "vector_of",
]
_LOG = getLogger("flwr")
MOST_REASON = 1000
ORDERS, MODEL, CONFIG = "securevfl", "arrays", "config"
CONTROL, UPLOAD, REFUSED = "control", "upload", "refused"
"""Names of records in a message; `MODEL` and `CONFIG` are Flower's own."""
_KEPT, _NEW, _ROUND = "securevfl kept", "securevfl new", "securevfl round"
_MEMORY = "memory of "
M = TypeVar("M", bound=StepMessage)


def sizes_of(arrays: ArrayRecord) -> dict[str, int]:
    """The size of each tensor by name, in the order of θ, for `Blocks`."""
    return {name: prod(array.shape) for name, array in arrays.items()}


def vector_of(arrays: ArrayRecord) -> RealArray:
    """θ: all tensors of a model, concatenated.

    Raises:
        DataError: no tensors, tensors of different dtypes, or other than float32 and float64.
        MalformedMessage: bytes that are not an array, NaN or infinity.
    """
    types = {array.dtype for array in arrays.values()}
    if len(types) != 1 or not types <= {"float32", "float64"}:
        found = ", ".join(sorted(types)) or "no type"
        raise DataError(f"tensors of {found}: expected float32 alone, or float64 alone")
    vector = np.concatenate([_read(array).ravel() for array in arrays.values()])
    _require_floats(vector)
    return vector


def arrays_of(vector: RealArray, like: ArrayRecord) -> ArrayRecord:
    """The inverse of `vector_of`, with the names and shapes of another model of equal size."""
    sizes = sizes_of(like)
    if vector.shape != (sum(sizes.values()),):
        raise DataError(f"a model of {sum(sizes.values())} parameters, {vector.shape} were given")
    parts = np.split(vector, np.cumsum(list(sizes.values()))[:-1])
    return ArrayRecord(
        {
            name: Array(part.reshape(array.shape))
            for (name, array), part in zip(like.items(), parts, strict=True)
        }
    )


def record_of(message: StepMessage) -> ArrayRecord:
    """A message's arrays and bytes by name, without its step."""
    values = {each.name: getattr(message, each.name) for each in fields(message)}
    del values["step"]
    return ArrayRecord(
        {
            name: Array(np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value)
            for name, value in values.items()
        }
    )


def message_of(record: ArrayRecord, kind: type[M], step: int) -> M:
    """The inverse of `record_of`, for a kind of message and a step."""
    types = {each.name: each.type for each in fields(kind) if each.name != "step"}
    if record.keys() != types.keys():
        raise MalformedMessage(f"{', '.join(record)} where {', '.join(types)} are expected")
    parts: dict[str, Any] = {}
    for name, array in record.items():
        values = _read(array)
        if values.ndim != 1:
            raise MalformedMessage(f"an array of {values.shape} where a vector is expected")
        if types[name] is not bytes:
            _require_floats(values)
        elif values.dtype != np.uint8:
            raise MalformedMessage(f"{name}: {values.dtype} where bytes are expected")
        parts[name] = values.tobytes() if types[name] is bytes else values
    return kind(step=step, **parts)


def record_of_state(state: ClientState) -> ArrayRecord:
    """A client's state as a record."""
    kept = {"control": state.control, "drift": state.drift}
    kept |= {f"{_MEMORY}{name}": values for name, values in state.memory.items()}
    return ArrayRecord({name: Array(each) for name, each in kept.items() if each is not None})


def state_of(record: ArrayRecord) -> ClientState:
    """A client's state from its record."""
    kept = {name: array.numpy() for name, array in record.items()}
    control, drift = kept.pop("control", None), kept.pop("drift", None)
    memory = {name.removeprefix(_MEMORY): values for name, values in kept.items()}
    return ClientState(control, drift, memory)


def _read(array: Array) -> NDArray[Any]:
    values: object = None
    with suppress(TypeError, ValueError, EOFError, SyntaxError, MemoryError):
        values = array.numpy()
    if not isinstance(values, np.ndarray):  # NumPy also reads archives of arrays
        raise MalformedMessage("an array that NumPy cannot read")
    return values


def _require_floats(values: NDArray[Any]) -> None:
    if values.dtype not in (np.float32, np.float64):
        raise MalformedMessage(f"an array of {values.dtype} where floats are expected")
    if not np.isfinite(values).all():
        raise MalformedMessage("an array holds NaN or infinite values")


@dataclass(frozen=True)
class Orders:
    """A client's orders for one round, which the strategy sends with the model.

    Attributes:
        agreed: digest of the settings that both ends must share, see `agreed_on`.
        round_index: counted from 0.
        counted: the client's last round whose upload counted, or −1.
        own: its block as runs of entries: alternately a run's first entry and the entry after its
            last.
        shared: the shared block, in the same form.
    """

    agreed: bytes
    round_index: int
    client: int
    block: int
    counted: int
    own: list[int]
    shared: list[int]

    def record(self) -> ConfigRecord:
        """The orders as a record."""
        return ConfigRecord(asdict(self))

    @classmethod
    def of(cls, content: RecordDict) -> Self:
        """Orders from a record; a MalformedMessage for other fields or types."""
        if ORDERS not in content.config_records:
            raise MalformedMessage(
                f"a message without the settings {ORDERS!r}: another strategy's?"
            )
        record = content.config_records[ORDERS]
        if record.keys() != cls.__dataclass_fields__.keys():
            raise MalformedMessage(f"orders hold {', '.join(record)}")
        orders = cls(**record)  # type: ignore[arg-type]  # checked next
        if not isinstance(orders.agreed, bytes):
            raise MalformedMessage("orders without a digest")
        whole = orders.round_index, orders.client, orders.block, orders.counted
        runs = orders.own, orders.shared
        if not (
            all(isinstance(each, list) for each in runs)
            and all(isinstance(each, int) for each in chain(whole, *runs))
        ):
            raise MalformedMessage("orders hold other things than whole numbers")
        return orders


def agreed_on(federation: Federation, coding: Coding) -> bytes:
    """A digest of method, settings, blocks and coding, 32 bytes."""
    return hashlib.sha256(federation.digest + coding.terms.encode()).digest()


def runs_of(entries: IntArray) -> list[int]:
    """Ascending entries as runs: alternately the start of a run and its end."""
    starts = entries[np.diff(entries, prepend=-2) > 1]
    ends = entries[np.diff(entries, append=np.iinfo(np.int64).max) > 1] + 1
    return [int(each) for each in np.column_stack([starts, ends]).ravel()]


def entries_of(runs: list[int], parameters: int) -> IntArray:
    """The inverse of `runs_of`; a MalformedMessage unless ascending and within the model."""
    ascending = all(before < after for before, after in pairwise(runs))
    if len(runs) % 2 or not ascending or (runs and not 0 <= runs[0] < runs[-1] <= parameters):
        raise MalformedMessage(f"blocks that do not fit a model of {parameters} parameters")
    pairs = zip(runs[::2], runs[1::2], strict=True)
    return np.concatenate([np.arange(0), *(np.arange(start, end) for start, end in pairs)])


def client_app(
    federation: Federation,
    problem_of: Callable[[Context], ClientProblem],
    coding: Coding | None = None,
) -> ClientApp:
    """A ClientApp that trains as `local_training` does.

    It refuses a strategy of another federation or coding, which ends the run.

    A client's state between rounds is in its context, which Flower stores on its node. It is
    updated only when the server confirms that the round's upload counted.

    Args:
        federation: the same as the strategy's.
        problem_of: loads the node's rows; called in every round, so it should cache them.
        coding: of uploads, the same as the strategy's; by default `Plain`.
    """
    app, coding = ClientApp(), coding or Plain()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        orders = Orders.of(message.content)
        if orders.agreed != agreed_on(federation, coding):
            return _refusal(message, _said(federation, coding))
        broadcast = _broadcast(federation, orders, message.content)
        kept = _kept(context, orders.counted)
        result = local_training(problem_of(context), federation, broadcast, kept)
        upload, new = coding.seal(federation, result.upload, broadcast, result.state)
        context.state[_KEPT] = record_of_state(kept)
        context.state[_NEW] = record_of_state(new)
        context.state[_ROUND] = ConfigRecord({"index": orders.round_index})
        metrics = MetricRecord({"gradients": result.gradients})
        return Message(
            RecordDict({UPLOAD: record_of(upload), "metrics": metrics}), reply_to=message
        )

    return app


def _refusal(message: Message, reason: str) -> Message:
    """A reply that ends the run; an error would only void the round."""
    return Message(RecordDict({REFUSED: ConfigRecord({"reason": reason})}), reply_to=message)


def _said(federation: Federation, coding: Coding) -> str:
    method, blocks = federation.method.name, federation.blocks
    return (
        f"is in another federation: its app has {method}, {federation.settings}, {len(blocks)} "
        f"blocks of {blocks.parameters} parameters and uploads {coding.terms}; give both the same"
    )


def _kept(context: Context, counted: int) -> ClientState:
    if counted < 0:  # no upload of it has counted, whatever it trained
        return ClientState()
    last = context.state.config_records[_ROUND]["index"]
    return state_of(context.state.array_records[_NEW if last == counted else _KEPT])


def _broadcast(federation: Federation, orders: Orders, content: RecordDict) -> Broadcast:
    blocks, corrects = federation.blocks, federation.method.corrects
    weights = _vector_in(content, MODEL)
    control = _vector_in(content, CONTROL) if corrects else weights[:0]
    due = (blocks.parameters,), (blocks.parameters if corrects else 0,)
    if (weights.shape, control.shape) != due or not 0 <= orders.block < len(blocks):
        raise UnexpectedMessage(
            f"θ of {weights.shape}, κ of {control.shape} and block {orders.block}, where {due[0]}, "
            f"{due[1]} and one of {len(blocks)} blocks are expected"
        )
    return Broadcast(orders.round_index, orders.client, orders.block, weights, control)


def _vector_in(content: RecordDict, name: str) -> RealArray:
    if name not in content.array_records:
        raise MalformedMessage(f"a message without the arrays {name!r}")
    return vector_of(content.array_records[name])


class UploadsBlock:
    """A mod for other ClientApps: uploads only the change of their block.

    The client trains the whole model as under Flower's FedAvg and replies with all of it; the mod
    extracts the block that the strategy asked for. For methods without control variates (FedBCGD,
    FedAvgM …), under `Plain` uploads: `ClientApp(mods=[UploadsBlock()])`. Under a method with
    control variates it refuses to train, which ends the run.
    """

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Replace the client's reply by its block.

        Raises:
            MalformedMessage: the client's reply is not a model of the same parameters.
        """
        if ORDERS not in message.content:
            return call_next(message, context)
        orders = Orders.of(message.content)
        if CONTROL in message.content:
            return _refusal(
                message,
                "uses UploadsBlock, which cannot correct steps by control variates: give it "
                "securevfl's client_app, or choose a method without them",
            )
        start = _vector_in(message.content, MODEL)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        (name, arrays), *others = reply.content.array_records.items()
        trained = vector_of(arrays)
        if others or (trained.shape, trained.dtype) != (start.shape, start.dtype):
            raise MalformedMessage("a reply that is not the model that was sent, trained")
        change, nothing = trained - start, start[:0]
        own, shared = (entries_of(runs, len(start)) for runs in (orders.own, orders.shared))
        upload = BlockUpload(orders.round_index, change[own], change[shared], nothing, nothing)
        del reply.content[name]
        reply.content[UPLOAD] = record_of(upload)
        return reply


class FederationStrategy(FedAvg):
    """Any method of `securevfl.horizontal` as a strategy; evaluation is FedAvg's.

    In the first round it waits for M nodes and numbers them by their ids. A client that fails is
    left out of the round's means; a round in which a group has no clients left changes nothing.

    Args:
        federation: method, settings and blocks; blocks are made from `sizes_of` the initial arrays.
        coding: of uploads, the same as the clients'; by default `Plain`.
        fraction_evaluate: fraction of nodes that evaluate, as in FedAvg.
    """

    def __init__(
        self,
        federation: Federation,
        coding: Coding | None = None,
        fraction_evaluate: float = 0.0,
    ) -> None:
        settings = federation.settings
        super().__init__(
            fraction_train=settings.taking_part / settings.clients,
            fraction_evaluate=fraction_evaluate,
            min_train_nodes=settings.taking_part,
            min_available_nodes=settings.clients,
            arrayrecord_key=MODEL,
            configrecord_key=CONFIG,
        )
        self._federation = federation
        self._coding = coding or Plain()
        self._state: ServerState | None = None
        self._model = ArrayRecord()
        self._nodes: list[int] = []
        self._counted: dict[int, int] = {}

    @property
    def state(self) -> ServerState:
        """Weights, velocity and control variate; a ConfigError before the first round."""
        if self._state is None:
            raise ConfigError("no round has begun")
        return self._state

    @override
    def summary(self) -> None:
        method, settings = self._federation.method, self._federation.settings
        _LOG.info("\t├──> %s: %d blocks", method.name, len(self._federation.blocks))
        _LOG.info("\t├──> %d of %d clients", settings.taking_part, settings.clients)
        super().summary()

    @override
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send model and orders to participating clients; a ConfigError if sizes do not match."""
        if self._state is None:
            self._begin(arrays, grid)
        config["server-round"] = server_round
        assignments = self._federation.assignments(self.state.round_index)
        return [self._message(client, block, config) for client, block in assignments.items()]

    @override
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The model after the round.

        Raises:
            PeerViolation: a client that cannot take part in this federation, or an upload that
                does not fit.
            TrainingDiverged: θ or κ is no longer finite.
        """
        fine, _ = self._check_and_log_replies(replies, is_train=True, validate=False)
        due = self._federation.assignments(self.state.round_index)
        asked = {self._nodes[client]: client for client in due}
        uploads: dict[int, StepMessage] = {}
        for reply in fine:
            node = reply.metadata.src_node_id
            if node not in asked or asked[node] in uploads:
                raise PeerViolation(f"node {node} was not asked for an upload, or sent another")
            uploads[asked[node]] = self._upload(reply)
        lost = {*due.values()} - {due[client] for client in uploads}
        if lost:
            _LOG.warning("round %d is void: nobody uploaded blocks %s", server_round, sorted(lost))
            self._state = replace(self.state, round_index=self.state.round_index + 1)
            return None, None
        totals = self._coding.open(self._federation, self.state, uploads)
        self._counted |= dict.fromkeys(uploads, self.state.round_index)
        self._state = aggregate(self.state, self._federation, totals)
        return arrays_of(self._state.weights, self._model), _metrics(fine)

    def _begin(self, arrays: ArrayRecord, grid: Grid) -> None:
        start, clients = vector_of(arrays), self._federation.settings.clients
        if len(start) != self._federation.blocks.parameters:
            raise ConfigError(
                f"blocks hold {self._federation.blocks.parameters} parameters, the initial arrays "
                f"{len(start)}"
            )
        _, every = sample_nodes(grid, clients, clients)
        self._nodes = sorted(every)[:clients]
        self._model = arrays
        self._state = ServerState.start(start, self._federation.method)

    def _message(self, client: int, block: int, config: ConfigRecord) -> Message:
        state, blocks = self.state, self._federation.blocks
        orders = Orders(
            agreed_on(self._federation, self._coding),
            state.round_index,
            client,
            block,
            self._counted.get(client, -1),
            runs_of(blocks.own[block]),
            runs_of(blocks.shared),
        )
        model = arrays_of(state.weights, self._model)
        content = RecordDict({MODEL: model, CONFIG: config, ORDERS: orders.record()})
        if state.control.size:
            content[CONTROL] = ArrayRecord({CONTROL: Array(state.control)})
        node = self._nodes[client]
        return Message(content, message_type=MessageType.TRAIN, dst_node_id=node)

    def _upload(self, reply: Message) -> StepMessage:
        node = reply.metadata.src_node_id
        if REFUSED in reply.content.config_records:
            reason = str(reply.content.config_records[REFUSED].get("reason"))
            raise PeerViolation(f"node {node} {reason[:MOST_REASON]}")
        if UPLOAD not in reply.content.array_records:
            raise PeerViolation(
                f"node {node} uploaded no block: its ClientApp needs `UploadsBlock`"
            )
        record = reply.content.array_records[UPLOAD]
        return message_of(record, self._coding.kind, self.state.round_index)


def _metrics(replies: list[Message]) -> MetricRecord:
    contents = [reply.content for reply in replies]
    arrays = [array for each in contents for array in each.array_records[UPLOAD].values()]
    return MetricRecord(
        {"clients": len(contents), "uploaded-bytes": sum(len(array.data) for array in arrays)}
    )
