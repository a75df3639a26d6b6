"""Noise on sums of clients' uploads, and what it promises of a client (McMahan et al., ICLR 2018).

Neighbours are two federations in which everything of one client is replaced: its rows, and what it
keeps between rounds (replace-one, a client at a time). What a client uploads in a round, its block,
the shared block and control variates alike, is one vector of Euclidean length β at most, so that
the sums of a round, side by side, move by 2β at most. The server adds noise of deviation z·2β to
every number of the sums: it is trusted, as it sees them without noise.

Two promises, of all that is computed from noisy sums. *Hidden sample*: to whoever does not know who
took part in which round, m of M clients drawn without replacement (Wang, Balle,
Kasiviswanathan, AISTATS 2019, theorem 27, by Google's dp-accounting). *Known sample*: to everybody
else, by how often the client took part that did so most. Whoever knows the seed of the draws knows
the sample.

A sample hides nobody where clients keep something from round to round, control variates say: what
others upload tells which of them took part before, and rounds are no longer samples of their own.
Then the first promise is that of a client that takes part in all rounds.

Not covered: uploads themselves, which the server sees or whose sums it sees; how many rows a client
has, who dropped out, tuning, and other federations over the same rows.
"""

from dataclasses import dataclass
from functools import cache
from math import inf, sqrt

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError, DataError
from securevfl.privacy.mechanisms import GRID, Mechanism
from securevfl.privacy.streams import NoiseStream


@dataclass(frozen=True)
class ClientNoise:
    """Clipped uploads, and Gaussian noise on their sums.

    Attributes:
        noise_multiplier: z: the deviation of the noise on a sum over its sensitivity 2β. 0 adds
            nothing and promises nothing.
        clip: β, the greatest Euclidean length of all that a client uploads in a round.
    """

    noise_multiplier: float
    clip: float

    def __post_init__(self) -> None:
        Mechanism("gaussian", self.noise_multiplier, self.clip)

    def clipped(self, upload: FloatArray) -> FloatArray:
        """An upload, shape (n,), shortened to β at most, its numbers on a grid of β/2^20.

        DataError for NaN or an infinity, which clipping would hide.
        """
        values = np.asarray(upload, np.float64)
        largest = float(np.max(np.abs(values), initial=0.0))
        if not largest < inf:  # NaN compares false
            raise DataError("an upload holds NaN or infinite values, finite ones expected")
        if largest == 0:
            return values
        unit = self.clip / GRID
        # Rounding to the grid may add half a unit an entry.
        room = self.clip - unit * sqrt(len(values)) / 2
        length = largest * float(np.linalg.norm(values / largest))
        shortened = values * min(1.0, room / length)
        return np.asarray(np.rint(shortened / unit) * unit)

    def noisy(self, sums: FloatArray, stream: NoiseStream) -> FloatArray:
        """Sums of clipped uploads with fresh noise, on the grid, in any shape."""
        return Mechanism("gaussian", self.noise_multiplier, self.clip).perturb(sums, stream)


@dataclass(frozen=True)
class ClientPromise:
    """What has been promised of a client at δ: ε to whoever knows who took part when, or does not.

    `participations` are the rounds of the client that took part most often.
    """

    delta: float
    hidden_sample: float
    known_sample: float
    participations: int


def client_promise(
    noise_multiplier: float,
    *,
    clients: int,
    taking_part: int,
    rounds: int,
    participations: int,
    delta: float,
    remembers: bool = False,
) -> ClientPromise:
    """Both promises at δ after a number of rounds, of m of M clients each, with noisy sums.

    `participations` are the rounds of the client that took part in most of them; `remembers` says
    whether clients keep something from round to round that uploads depend on.
    """
    if not 0 < delta < 1:
        raise ConfigError(f"delta = {delta}: expected a number between 0 and 1")
    if not (1 <= taking_part <= clients and 0 <= participations <= rounds):
        raise ConfigError(
            f"taking_part = {taking_part} of clients = {clients} and participations = "
            f"{participations} of rounds = {rounds}: expected parts of the whole"
        )
    if noise_multiplier == 0 and rounds:
        return ClientPromise(delta, inf, inf, participations)
    hidden = _of_all(noise_multiplier, rounds, delta)  # as if the client took part in all
    if taking_part < clients and not remembers:
        # Either bounds it; that of samples is loose where most clients take part.
        hidden = min(hidden, _of_samples(noise_multiplier, clients, taking_part, rounds, delta))
    known = _of_all(noise_multiplier, participations, delta)
    return ClientPromise(delta, hidden, known, participations)


def _of_all(noise_multiplier: float, releases: int, delta: float) -> float:
    """ε of Gaussians, which compose to one Gaussian exactly."""
    import dp_accounting  # noqa: PLC0415  # slow to import, and most federations have no noise

    if not releases:
        return 0.0
    return float(dp_accounting.get_epsilon_gaussian(noise_multiplier / sqrt(releases), delta))


@cache  # takes seconds
def _of_samples(
    noise_multiplier: float, clients: int, taking_part: int, rounds: int, delta: float
) -> float:
    import dp_accounting  # noqa: PLC0415
    from dp_accounting import rdp  # noqa: PLC0415

    if not rounds:
        return 0.0
    # The multiplier of this event is over the sensitivity, 2β here, not over the longest upload.
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        clients, taking_part, dp_accounting.GaussianDpEvent(noise_multiplier)
    )
    accountant = rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    accountant.compose(event, rounds)
    return float(accountant.get_epsilon(delta))
