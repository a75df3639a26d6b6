"""What a job file says about batches and steps, as an algorithm takes it; public to all parties."""

from securevfl.data.partition import BatchSchedule
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.models.losses import Loss
from securevfl.protocols.signals import LocalRule
from securevfl.protocols.vertical.fedbcd import Plan, StepSize


def plan_of(job: Job, loss: Loss, parties: int) -> Plan:
    """Rounds, step sizes and local steps of a job."""
    settings = job.job
    return Plan(
        rounds=settings.rounds,
        in_turns=settings.algorithm == "fedbcd-s",
        step_size=step_size_of(job, parties),
        rule=LocalRule(
            loss,
            local_steps=job.local_steps,
            l2=settings.l2,
            proximal=settings.proximal,
            frozen=settings.local_rule == "frozen",
            gauss_newton=settings.local_rule == "gauss-newton",
        ),
    )


def step_size_of(job: Job, parties: int) -> StepSize:
    """η of a job, round by round."""
    settings = job.job
    divided_by = parties if settings.divide_by_sqrt_parties else 1
    return StepSize(settings.learning_rate, decays=job.step_size_decays, parties=divided_by)


def schedule_of(job: Job, dataset: VerticalDataset) -> BatchSchedule:
    """Which rows every round takes.

    Raises:
        ConfigError: a batch size that does not fit the data.
    """
    rows = len(dataset.train_labels)
    size = rows if job.job.batch_size == "full" else job.job.batch_size
    return BatchSchedule(
        rows, size, dataset.fingerprint, seed=job.job.seed, sampling=job.job.sampling
    )
