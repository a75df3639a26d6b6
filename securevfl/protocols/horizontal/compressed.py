"""Uploads in fewer bytes over a federation: FedAvg with Top-k, FedPAQ, QSGD on blocks, and others.

FedPAQ is FedAvg under a `Quantizer`; QSGD on blocks is FedBCGD under one. The change of θ in the
uploaded entries, the shared block's included, is encoded as one vector, and that of κ_j as another.

Learns:
    server: every upload singly, coarsely: `Method.learns` but for what encoding leaves out.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from securevfl.arrays import RealArray
from securevfl.errors import MalformedMessage
from securevfl.protocols.horizontal.compression import Compressor, compress
from securevfl.protocols.horizontal.federation import Assignment, Federation
from securevfl.protocols.horizontal.local import Broadcast, ClientState, Upload
from securevfl.protocols.horizontal.methods import Method
from securevfl.protocols.horizontal.server import ServerState, Totals, total
from securevfl.protocols.horizontal.told import after_telling, changes_of, controls_of, upload_of
from securevfl.wire.codec import StepMessage, message_kind

_ERROR = "left out by compression"
_DRAWS = 1


@message_kind(94, stage="round", carries="values", shows="updates")
class CompressedUpload(StepMessage):
    """A client to the server: what `compression` encodes of its changes, and of those of κ_j."""

    changes: bytes
    controls: bytes


class Compressed:
    """Every upload through a compressor.

    Args:
        compressor: of both vectors.
    """

    kind = CompressedUpload

    def __init__(self, compressor: Compressor) -> None:
        self._compressor = compressor

    @property
    def terms(self) -> str:
        """The compressor."""
        return f"compressed by {self._compressor!r}"

    def learns(self, method: Method) -> Mapping[str, str]:
        """As the method says, but coarsely."""
        return {**method.learns, "server": f"coarsely, {method.learns['server']}"}

    def seal(
        self, federation: Federation, upload: Upload, broadcast: Broadcast, state: ClientState
    ) -> tuple[CompressedUpload, ClientState]:
        """Encoded, with what earlier uploads left out of the same entries.

        Raises:
            DataError: a value beyond float32.
        """
        each = Assignment(upload.client, upload.block)
        entries = federation.blocks.uploaded(upload.block)
        seed = federation.settings.seed
        draws = np.random.default_rng((seed, broadcast.round_index, upload.client, _DRAWS))
        errors = state.memory.get(_ERROR, np.zeros_like(broadcast.weights))
        encoded = compress(self._compressor, changes_of(upload), draws, errors[entries])
        if encoded.error is not None:
            errors = errors.copy()
            errors[entries] = encoded.error
            state = replace(state, memory={**state.memory, _ERROR: errors})
        # No error feedback here: the next difference from κ_j holds what this one leaves out.
        controls = b""
        if upload.own_control.size:
            controls = self._compressor.encode(controls_of(upload), draws)
        message = CompressedUpload(broadcast.round_index, encoded.data, controls)
        told = self._opened(federation, each, message, broadcast.weights)
        return message, after_telling(state, entries, upload, told)

    def open(
        self, federation: Federation, state: ServerState, messages: Mapping[int, StepMessage]
    ) -> Totals:
        """The sums of what was encoded.

        Raises:
            MalformedMessage: bytes that encode nothing of the size that is due.
        """
        due = {each.client: each for each in federation.assignments(state.round_index)}
        uploads = []
        for client, message in messages.items():
            assert isinstance(message, CompressedUpload)  # noqa: S101
            try:
                uploads.append(self._opened(federation, due[client], message, state.weights))
            except MalformedMessage as error:
                raise MalformedMessage(f"client {client}: {error}") from error
        return total(federation.blocks, uploads)

    def _opened(
        self, federation: Federation, of: Assignment, message: CompressedUpload, like: RealArray
    ) -> Upload:
        blocks = federation.blocks
        size = len(blocks.uploaded(of.block))
        changes = self._compressor.decode(message.changes, size).astype(like.dtype)
        controls = changes[:0]
        if federation.method.corrects:
            controls = self._compressor.decode(message.controls, size).astype(like.dtype)
        elif message.controls:
            raise MalformedMessage("control variates where the method has none")
        return upload_of(of.client, of.block, len(blocks.own[of.block]), changes, controls)
