"""Homomorphic work in every local step (`he_per_step`): the cost of other systems, for benchmarks.

Federated transfer learning in FATE, which the encrypted table of Liu et al. 2019 stands on,
exchanges encrypted components once a round and then, in every local step, multiplies them with its
own fresh values, masks the product and has it decrypted. The same shape here: the round of
`encrypted`, but its last two messages once for each local step q of feature party k at θ_q,

3. k → K: Enc_K(J_qᵀd⁰ + r_q), of the ciphertexts that came once; r_q fresh, re-randomized;
4. K → k: J_qᵀd⁰ + r_q; k removes r_q and adds c·J_qᵀ(H_k(θ_q) − H_k⁰),

with J_q its Jacobian at θ_q, X of a linear model. It so steps by J_qᵀ(d⁰ + c(H_k(θ_q) − H_k⁰))/S,
the rule of `ResidualSignal`. What it adds is its own: under encryption that would be one more sum
of known numbers. The label party's own steps are in clear, as in every exchange.

Of a linear model all of this is in vain: X is the same in every step, and one product a round gives
the same steps up to the rounding of fixed point. Of a network the steps are those of its own
curvature rule in place of a linearization at θ⁰.

Learns: as in `encrypted`; the party of a linear model no more, that of a network J_qᵀd⁰ at every
    θ_q. The label guard counts every product of either.
Messages a round of FedBCD-p: 2(Q + 1)(K − 1).
"""

from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError
from securevfl.protocols.exchange import Batch
from securevfl.protocols.exchanges.encrypted import EncryptedFeatureSide
from securevfl.protocols.exchanges.homomorphic import PeerKey
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.gathering import Gathering
from securevfl.protocols.session.party import Party, Step
from securevfl.protocols.signals import GradientSignal


class PerStepFeatureSide(EncryptedFeatureSide):
    """A feature party's side: evaluates under the label party's key in every local step.

    Args:
        party: who it is.
        gathering: how its predictions travel.
        key: the label party's.
        curvature: c of the local rule, 0 where residuals stay frozen.
    """

    def __init__(self, party: Party, gathering: Gathering, key: PeerKey, curvature: float) -> None:
        super().__init__(party, gathering, key)
        self._curvature = curvature
        self._exchanged: FloatArray | None = None

    @override
    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> GradientSignal | None:
        """Multiply the round's encrypted residuals, add what this party has changed since."""
        if step.fresh:
            self._exchanged = predictions
        signal = await super().signal(step, batch, predictions, others)
        if signal is None or step.fresh:
            return signal
        assert self._exchanged is not None  # noqa: S101
        async with self._party.costs.compute("local"):
            moved = self._curvature * (predictions - self._exchanged)
            own = batch.tangent.T @ moved / len(batch.inputs)
        return GradientSignal(signal.value + own)


def feature_side(
    plan: Plan, party: Party, gathering: Gathering, key: PeerKey
) -> EncryptedFeatureSide:
    """A feature party's side in two round trips: one product a round, or one a local step."""
    if plan.job.exchange.he_per_step:
        return PerStepFeatureSide(party, gathering, key, plan.rule.curvature)
    return EncryptedFeatureSide(party, gathering, key)


def check_per_step(plan: Plan) -> None:
    """Refuse what repeated products do not go with.

    Raises:
        ConfigError: they do not.
    """
    settings, exchange = plan.job.job, plan.job.exchange
    if not plan.algorithm.repeats_products:
        raise ConfigError(f"he_per_step: algorithm {plan.algorithm.name!r} repeats no products")
    if exchange.hide != "residuals" or exchange.round_trips == 1:
        raise ConfigError("he_per_step needs hide = 'residuals' and no round_trips = 1")
    if settings.learning_rate == "auto":
        raise ConfigError("he_per_step needs a learning_rate and a number of local_steps")
    if settings.proximal or settings.acceleration == "nesterov":
        raise ConfigError("he_per_step takes plain gradient steps: no proximal, no acceleration")
    if settings.local_rule == "gauss-newton":
        raise ConfigError("he_per_step follows networks themselves: no local_rule = 'gauss-newton'")
