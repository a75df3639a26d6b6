"""A Flower strategy that says who uploads which block, and averages blocks."""

from collections.abc import Iterable
from dataclasses import replace
from logging import getLogger

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from typing_extensions import override

from securevfl.errors import ConfigError, PeerViolation
from securevfl.flower.orders import (
    CONFIG,
    CONTROL,
    MODEL,
    NAME,
    REFUSED,
    UPLOAD,
    Orders,
    agreed_on,
    runs_of,
)
from securevfl.flower.records import arrays_of, message_of, vector_of
from securevfl.protocols.horizontal.federation import Assignment, Federation
from securevfl.protocols.horizontal.server import ServerState, aggregate
from securevfl.protocols.horizontal.uploads import Coding, Plain
from securevfl.wire.codec import StepMessage

_LOG = getLogger("flwr")
MOST_REASON = 1000


class FederationStrategy(FedAvg):
    """Any method of `protocols.horizontal` as a strategy; evaluation is FedAvg's.

    In its first round it waits for M nodes and numbers them by their ids. A client that fails is
    left out of its round's means; a round in which a group has nobody left changes nothing.

    Args:
        federation: method, settings and blocks; `sizes_of` the initial arrays are what blocks are
            made of.
        coding: of uploads, that of the clients; by default `Plain`.
        fraction_evaluate: of all nodes, as in FedAvg.
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
        self._model: ArrayRecord | None = None
        self._nodes: list[int] = []
        self._counted: dict[int, int] = {}

    @property
    def state(self) -> ServerState:
        """Weights, velocity and control variate.

        Raises:
            ConfigError: before the first round.
        """
        if self._state is None:
            raise ConfigError("no round has begun")
        return self._state

    @override
    def summary(self) -> None:
        """What is trained and how."""
        method, settings = self._federation.method, self._federation.settings
        _LOG.info("\t├──> %s: %d blocks", method.name, len(self._federation.blocks))
        _LOG.info("\t├──> %d of %d clients", settings.taking_part, settings.clients)
        super().summary()

    @override
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The model and its orders to every client that takes part.

        Raises:
            ConfigError: a model of another size than the blocks.
        """
        if self._state is None:
            self._begin(arrays, grid)
        config["server-round"] = server_round
        return [self._message(each, config) for each in self._assignments()]

    @override
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The model after the round.

        Raises:
            PeerViolation: a client of another federation, or an upload that does not fit.
            TrainingDiverged: θ or κ is no longer finite.
        """
        fine, _ = self._check_and_log_replies(replies, is_train=True, validate=False)
        due = {self._nodes[each.client]: each for each in self._assignments()}
        uploads: dict[int, StepMessage] = {}
        for reply in fine:
            node = reply.metadata.src_node_id
            if node not in due or due[node].client in uploads:
                raise PeerViolation(f"node {node} was not asked for an upload, or sent another")
            uploads[due[node].client] = self._upload(reply)
        lost = {each.block for each in due.values()} - {
            each.block for each in due.values() if each.client in uploads
        }
        if lost:
            _LOG.warning("round %d is void: nobody uploaded blocks %s", server_round, sorted(lost))
            self._state = replace(self.state, round_index=self.state.round_index + 1)
            return None, None
        totals = self._coding.open(self._federation, self.state, uploads)
        self._counted |= dict.fromkeys(uploads, self.state.round_index)
        self._state = aggregate(self.state, self._federation, totals)
        return arrays_of(self._state.weights, self._like()), _metrics(fine)

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

    def _like(self) -> ArrayRecord:
        assert self._model is not None  # noqa: S101  # set with the state
        return self._model

    def _assignments(self) -> tuple[Assignment, ...]:
        return self._federation.assignments(self.state.round_index)

    def _message(self, to: Assignment, config: ConfigRecord) -> Message:
        state, blocks = self.state, self._federation.blocks
        orders = Orders(
            agreed_on(self._federation, self._coding),
            state.round_index,
            to.client,
            to.block,
            self._counted.get(to.client, -1),
            runs_of(blocks.own[to.block]),
            runs_of(blocks.shared),
        )
        content = RecordDict(
            {
                MODEL: arrays_of(state.weights, self._like()),
                CONFIG: config,
                NAME: orders.record(),
            }
        )
        if state.control.size:
            content[CONTROL] = ArrayRecord({CONTROL: Array(state.control)})
        node = self._nodes[to.client]
        return Message(content, message_type=MessageType.TRAIN, dst_node_id=node)

    def _upload(self, reply: Message) -> StepMessage:
        node = reply.metadata.src_node_id
        if REFUSED in reply.content.config_records:
            reason = str(reply.content.config_records[REFUSED].get("reason"))
            raise PeerViolation(f"node {node} is in another federation: {reason[:MOST_REASON]}")
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
