"""What a job with real targets does not go with."""

from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.protocols.algorithm import Algorithm


def check_regression(job: Job, algorithm: Algorithm) -> None:
    """Refuse what takes classes.

    Raises:
        ConfigError: an algorithm, a target or noise that has no meaning for real targets.
    """
    if algorithm.only_loss is not None:
        raise ConfigError(
            f"algorithm = {algorithm.name!r} tells two classes apart by {algorithm.only_loss} "
            "loss: it takes no real targets; use 'fedbcd-p'"
        )
    if job.job.target_auc is not None:
        raise ConfigError("target_auc: real targets have no AUC; drop it, training ends by itself")
    if job.privacy.label_noise_multiplier:
        raise ConfigError(
            "label_noise_multiplier: how far one real target moves a residual has no public "
            "bound, so that no noise of a known size hides it; noise on predictions is as ever"
        )
