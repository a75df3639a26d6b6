"""Uploads that are clipped at the client, and summed with noise at the server: client-level `dp`.

The server is trusted: it sees what clients upload, clipped but without noise. What it hands on, θ
and κ, is computed from noisy sums alone. See `privacy.clients` for what that promises and does not.

Learns:
    server: every upload singly, shortened to β.
    clients, and everybody who gets θ: of one client no more than (ε, δ) allows, whatever its rows.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from securevfl.arrays import RealArray
from securevfl.errors import PeerViolation
from securevfl.privacy.clients import ClientNoise, ClientPromise, client_promise
from securevfl.privacy.mechanisms import GRID
from securevfl.privacy.streams import NoiseKey
from securevfl.protocols.horizontal.federation import Federation
from securevfl.protocols.horizontal.local import Broadcast, ClientState, Upload
from securevfl.protocols.horizontal.methods import Method
from securevfl.protocols.horizontal.server import ServerState, Totals, total
from securevfl.protocols.horizontal.told import after_telling, changes_of, controls_of, upload_of
from securevfl.protocols.horizontal.uploads import BlockUpload, uploads_in
from securevfl.wire.codec import StepMessage


class Noisy:
    """Clipped uploads, and noise on their sums.

    Args:
        noise: how long an upload may be, and how much noise a sum gets.
        key: of the server's noise.
    """

    kind = BlockUpload

    def __init__(self, noise: ClientNoise, key: NoiseKey) -> None:
        self._noise = noise
        self._stream = key.stream("client sums")

    @property
    def terms(self) -> str:
        """Length and noise."""
        return f"noisy, {self._noise!r}"

    def learns(self, method: Method) -> Mapping[str, str]:
        """As the method says at the server; clients get θ from noisy sums."""
        client = f"{method.learns['client']}: of another client no more than (ε, δ) allows"
        return {"server": f"clipped, {method.learns['server']}", "client": client}

    @property
    def unit(self) -> float:
        """Of the grid that clipped uploads and noise lie on."""
        return self._noise.clip / GRID

    def clipped(
        self, federation: Federation, upload: Upload, state: ClientState
    ) -> tuple[Upload, ClientState]:
        """Changes and control variates as one vector of length β at most, in float64 on the grid.

        Raises:
            DataError: NaN or an infinity.
        """
        changes = changes_of(upload)
        every = self._noise.clipped(np.concatenate([changes, controls_of(upload)]))
        parts = np.split(every, [len(changes)])
        told = upload_of(upload.client, upload.block, len(upload.own), *parts)
        entries = federation.blocks.uploaded(upload.block)
        return told, after_telling(state, entries, upload, told)

    def seal(
        self, federation: Federation, upload: Upload, broadcast: Broadcast, state: ClientState
    ) -> tuple[BlockUpload, ClientState]:
        """Clipped, in the dtype of θ.

        Raises:
            DataError: NaN or an infinity.
        """
        told, kept = self.clipped(federation, upload, state)
        parts = (part.astype(broadcast.weights.dtype) for part in told.parts)
        return BlockUpload(broadcast.round_index, *parts), kept

    def open(
        self, federation: Federation, state: ServerState, messages: Mapping[int, StepMessage]
    ) -> Totals:
        """The sums with noise, in the dtype of θ.

        Raises:
            UnexpectedMessage: parts of another size or dtype than are due.
            PeerViolation: an upload that is longer than agreed.
        """
        uploads = map(self._on_grid, uploads_in(federation, state, messages))
        return self.noisy(total(federation.blocks, uploads), state.weights)

    def noisy(self, sums: Totals, like: RealArray) -> Totals:
        """Sums of clipped uploads with fresh noise, in the dtype of `like`."""
        every = self._noise.noisy(np.concatenate([sums.changes, sums.controls]), self._stream)
        changes, controls = np.split(every.astype(like.dtype), [len(sums.changes)])
        return Totals(changes, controls, sums.uploads)

    def _on_grid(self, upload: Upload) -> Upload:
        """In float64 on the grid of noise, from which float32 is less than half a unit off."""
        changes, controls = (
            np.rint(part.astype(np.float64) / self.unit) * self.unit
            for part in (changes_of(upload), controls_of(upload))
        )
        length = float(np.linalg.norm(np.concatenate([changes, controls])))
        # What honest clients send is this long at most but for the last bits of the norm.
        if not length <= self._noise.clip * (1 + 1e-9):
            raise PeerViolation(
                f"client {upload.client} sent an upload of length {length:g}, at most "
                f"{self._noise.clip:g} agreed"
            )
        return upload_of(upload.client, upload.block, len(upload.own), changes, controls)


def promise(federation: Federation, noise: ClientNoise, rounds: int, delta: float) -> ClientPromise:
    """What the noise promises of a client after a federation's first rounds.

    Clients know `Settings.seed` and so who takes part when: among them only `known_sample` holds.

    Raises:
        ConfigError: a δ or a number of rounds that cannot be.
    """
    taking_part = Counter(
        each.client for index in range(rounds) for each in federation.assignments(index)
    )
    return client_promise(
        noise.noise_multiplier,
        clients=federation.settings.clients,
        taking_part=federation.settings.taking_part,
        rounds=rounds,
        participations=max(taking_part.values(), default=0),
        delta=delta,
        remembers=federation.method.corrects,
    )
