"""Clients on Flower: this project's own, and a mod for anybody's."""

from collections.abc import Callable

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from securevfl.errors import ConfigError, MalformedMessage, UnexpectedMessage
from securevfl.flower.orders import (
    CONTROL,
    MODEL,
    NAME,
    REFUSED,
    UPLOAD,
    Orders,
    agreed_on,
    entries_of,
)
from securevfl.flower.records import record_of, record_of_state, state_of, vector_of
from securevfl.protocols.horizontal.federation import Federation
from securevfl.protocols.horizontal.local import Broadcast, ClientState, local_training
from securevfl.protocols.horizontal.problem import ClientProblem
from securevfl.protocols.horizontal.uploads import BlockUpload, Coding, Plain

_KEPT, _NEW, _ROUND = "securevfl kept", "securevfl new", "securevfl round"


def client_app(
    federation: Federation,
    problem_of: Callable[[Context], ClientProblem],
    coding: Coding | None = None,
) -> ClientApp:
    """A ClientApp that trains as `local_training` does.

    A strategy of another federation or coding is refused, which ends its run.

    What a client keeps between rounds is in its context, which Flower keeps on its node. It becomes
    what a round made of it only once the server says that the round's upload counted.

    Args:
        federation: that the strategy has too.
        problem_of: the node's rows; called in every round, so it should cache what it loads.
        coding: of uploads, that of the strategy; by default `Plain`.
    """
    app, coding = ClientApp(), coding or Plain()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        orders = Orders.of(_config(message, NAME))
        if orders.agreed != agreed_on(federation, coding):  # an error alone would void the round
            told = ConfigRecord({"reason": _said(federation, coding)})
            return Message(RecordDict({REFUSED: told}), reply_to=message)
        weights = vector_of(_arrays(message, MODEL))
        control = weights[:0]
        if federation.method.corrects:
            control = vector_of(_arrays(message, CONTROL))
        _require_fitting(federation, orders, weights.shape, control.shape)
        broadcast = Broadcast(orders.round_index, orders.client, orders.block, weights, control)
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


class UploadsBlock:
    """A mod for other people's ClientApps: what their training changed in their block, and no more.

    The client trains the whole model as under Flower's FedAvg and replies with all of it; the mod
    takes out the block that the strategy asked for. For methods without control variates (FedBCGD,
    FedAvgM …), under `Plain` uploads: `ClientApp(mods=[UploadsBlock()])`.
    """

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Between Flower and the client.

        Raises:
            ConfigError: the method has control variates.
            MalformedMessage: the client's reply is not a model of the same parameters.
        """
        if NAME not in message.content:
            return call_next(message, context)
        orders = Orders.of(_config(message, NAME))
        if CONTROL in message.content:
            raise ConfigError("control variates need securevfl's own client_app")
        start = vector_of(_arrays(message, MODEL))
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


def _said(federation: Federation, coding: Coding) -> str:
    method, blocks = federation.method.name, federation.blocks
    return (
        f"its app has {method}, {federation.settings}, {len(blocks)} blocks of "
        f"{blocks.parameters} parameters and uploads {coding.terms}; give both the same"
    )


def _kept(context: Context, counted: int) -> ClientState:
    if counted < 0:  # nothing of it counted yet, whatever it trained
        return ClientState()
    last = context.state.config_records[_ROUND]["index"]
    return state_of(context.state.array_records[_NEW if last == counted else _KEPT])


def _arrays(message: Message, name: str) -> ArrayRecord:
    if name not in message.content.array_records:
        raise MalformedMessage(f"a message without the arrays {name!r}")
    return message.content.array_records[name]


def _config(message: Message, name: str) -> ConfigRecord:
    if name not in message.content.config_records:
        raise MalformedMessage(f"a message without the settings {name!r}: another strategy's?")
    return message.content.config_records[name]


def _require_fitting(
    federation: Federation, orders: Orders, weights: tuple[int, ...], control: tuple[int, ...]
) -> None:
    blocks = federation.blocks
    due = (blocks.parameters,), (blocks.parameters if federation.method.corrects else 0,)
    if (weights, control) != due or not 0 <= orders.block < len(blocks):
        raise UnexpectedMessage(
            f"θ of {weights}, κ of {control} and block {orders.block}, where {due[0]}, {due[1]} "
            f"and one of {len(blocks)} blocks are due"
        )
