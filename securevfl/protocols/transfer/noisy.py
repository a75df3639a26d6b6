"""Transfer learning under the `dp` exchange: units and Φ leave with noise, labels do not.

A release of a sample's units is clipped and noised like predictions of w outputs. Φ is a mean over
all rows of the label party and changes by 2/N_A at most in each of w numbers where one of them is
replaced: it takes noise of the same multiplier once a round, which the account counts as one more
release of every sample. The rest that is given follows from these (½ y Φ + 2g u, ΦΦᵀ, φ).

No ε covers labels: y multiplies Φ in every row of a batch, and the label party's own steps take y
as it is, so that noise on what is given would not cover its later units.
Held-out rows are scored by the Φ that was given last: another release would cost more.
"""

from securevfl.errors import ConfigError
from securevfl.protocols.plan import Plan


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
