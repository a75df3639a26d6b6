"""Transfer learning under the `dp` exchange: units and Φ leave with noise, labels do not.

A release of a sample's units is clipped and noised like predictions of w outputs. Φ is a mean over
all rows of the label party and changes by 2/N_A at most in each of w numbers where one of them is
replaced: it takes noise of the same multiplier once a round, which the account counts as one more
release of every sample. The rest that is given follows from these (½ y Φ + 2g u, ΦΦᵀ, φ).

No ε covers labels: y multiplies Φ in every row of a batch, and the label party's own steps take y
as it is, so that noise on what is given would not cover its later units.
Held-out rows are scored by the Φ that was given last: another release would cost more.
"""

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError
from securevfl.privacy.mechanisms import Mechanism
from securevfl.privacy.streams import Purpose
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.privacy_account import Noise


class NoisyRelease:
    """What a party's numbers become; see `objective.Release`.

    Args:
        noise: the party's.
        purpose: of the noise on units.
    """

    def __init__(self, noise: Noise, purpose: Purpose = "predictions") -> None:
        self._noise, self._purpose = noise, purpose

    def units(self, units: FloatArray) -> FloatArray:
        """Clipped, with fresh noise."""
        return self._noise.predictions.release(units, self._noise.key.stream(self._purpose))

    def phi(self, phi: FloatArray, rows: int) -> FloatArray:
        """With fresh noise; units are within ±1, so that one row is worth 2/N_A.

        Φ is not on the noise's grid of 2^-20 of that: rounding it may be worth one step more.
        """
        of_rows, clip = self._noise.predictions, (1 + 2.0**-20) / rows
        mechanism = Mechanism(of_rows.name, of_rows.noise_multiplier, clip, of_rows.outputs)
        return mechanism.perturb(phi, self._noise.key.stream("mean units"))


def check_noise(plan: Plan) -> None:
    """Check that noise is on no more than is accounted for.

    Raises:
        ConfigError: noise on labels or gradients.
    """
    privacy = plan.job.privacy
    if privacy.label_noise_multiplier:
        raise ConfigError(
            "label_noise_multiplier: no epsilon covers labels under algorithm = 'ftl', whose label "
            "party learns from them exactly"
        )
    if privacy.gradient_clip is not None or privacy.budget is not None:
        raise ConfigError(
            "algorithm = 'ftl' promises nothing end to end: drop gradient_clip and budget; "
            "release_budget bounds the releases"
        )
