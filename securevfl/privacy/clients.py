"""Noise on sums of clients' uploads, and its guarantees for a client (McMahan et al., ICLR 2018).

Neighbours are two federations that differ in one whole client: its rows, and its state between
rounds (replace-one, per client). A client's upload of a round (its block, the shared block and
control variates) is one vector of Euclidean norm at most β, so the sums of a round change by at
most 2β. The server adds noise of deviation z·2β to every number of the sums. The server is trusted,
as it sees them without noise.

There are two guarantees for everything computed from noisy sums. *Hidden sample*, against an
adversary that does not know who took part in which round: m of M clients drawn without replacement
(Wang, Balle, Kasiviswanathan, AISTATS 2019, theorem 27, by Google's dp-accounting). *Known sample*,
against everybody else: by the number of rounds of the client that took part most often. Whoever
knows the seed of the draws knows the sample.

Sampling hides nobody if clients keep state between rounds, such as control variates: uploads then
reveal who took part before, and rounds are not independent samples. The first guarantee is then
that of a client that takes part in all rounds.

Not covered: the uploads themselves, which the server sees (or their sums); how many rows a client
has, who dropped out, hyperparameter tuning, and other federations on the same rows.
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
    """Clipping of uploads, and Gaussian noise on their sums.

    Attributes:
        noise_multiplier: z: standard deviation of the noise on a sum, divided by its sensitivity
            2β. 0 adds no noise and guarantees nothing.
        clip: β, the largest Euclidean norm of a client's upload in a round.
    """

    noise_multiplier: float
    clip: float

    def __post_init__(self) -> None:
        Mechanism("gaussian", self.noise_multiplier, self.clip)

    def clipped(self, upload: FloatArray) -> FloatArray:
        """An upload, shape (n,), scaled to norm at most β and rounded to a grid of β/2^20.

        A DataError for NaN or infinity, which clipping would hide.
        """
        values = np.asarray(upload, np.float64)
        largest = float(np.max(np.abs(values), initial=0.0))
        if not largest < inf:  # NaN compares false
            raise DataError("an upload holds NaN or infinite values, finite ones expected")
        if largest == 0:
            return values
        unit = self.clip / GRID
        # Rounding to the grid may add half a unit per entry.
        room = self.clip - unit * sqrt(len(values)) / 2
        length = largest * float(np.linalg.norm(values / largest))
        shortened = values * min(1.0, room / length)
        return np.asarray(np.rint(shortened / unit) * unit)

    def noisy(self, sums: FloatArray, stream: NoiseStream) -> FloatArray:
        """Sums of clipped uploads with fresh noise, on the grid, in any shape."""
        return Mechanism("gaussian", self.noise_multiplier, self.clip).perturb(sums, stream)


@dataclass(frozen=True)
class ClientPromise:
    """ε at δ for a client, against adversaries that do not or do know who took part when.

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
    """Both guarantees at δ after a number of rounds, each with m of M clients and noisy sums.

    `participations` are the rounds of the client that took part most often; `remembers` says
    whether uploads depend on state that clients keep between rounds.
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
        # Both are bounds; the one for samples is loose if most clients take part.
        hidden = min(hidden, _of_samples(noise_multiplier, clients, taking_part, rounds, delta))
    known = _of_all(noise_multiplier, participations, delta)
    return ClientPromise(delta, hidden, known, participations)


def _of_all(noise_multiplier: float, releases: int, delta: float) -> float:
    """ε of Gaussian releases, which compose exactly to one Gaussian."""
    import dp_accounting  # noqa: PLC0415  # slow to import, and rarely needed

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
    # This event's multiplier refers to the sensitivity, 2β here, not to the largest norm.
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        clients, taking_part, dp_accounting.GaussianDpEvent(noise_multiplier)
    )
    accountant = rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    accountant.compose(event, rounds)
    return float(accountant.get_epsilon(delta))
