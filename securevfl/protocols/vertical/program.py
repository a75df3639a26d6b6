"""One party's program: agree with the others, train, score, keep the model.

The same coroutine runs in simulation and over a real network. It is given its own columns, and
the labels only at the label party.
"""

from dataclasses import dataclass

from securevfl.arrays import FloatArray
from securevfl.job import Job
from securevfl.models.local_model import LocalModel
from securevfl.models.losses import loss_for
from securevfl.models.storage import SavedModel, save_model
from securevfl.protocols.exchanges.label_guard import LeakageCount
from securevfl.protocols.session.party import Party
from securevfl.protocols.session.privacy_account import Promise, account_of
from securevfl.protocols.session.scoring import Score
from securevfl.protocols.vertical.algorithms import Training, train_fdml, train_fedbcd
from securevfl.protocols.vertical.local_part import LocalPart
from securevfl.protocols.vertical.private_gradients import PrivateGradients
from securevfl.protocols.vertical.workplace import PartyData, Workplace
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs


@dataclass(frozen=True)
class PartyOutcome:
    """What one party's program returns.

    Attributes:
        model: its trained part.
        rounds: rounds done.
        scores: held-out scores, at the label party.
        key_fingerprint: of its own homomorphic key, if any.
        key_bits: of that key, if its scheme has a choice.
        leakage: what the gradients it decrypted reveal.
        held_out: its own exact predictions of the held-out rows after the last round.
        privacy: what the job's noise promises; None where there is none.
    """

    model: SavedModel
    rounds: int
    scores: list[Score]
    key_fingerprint: str | None
    key_bits: int | None
    leakage: LeakageCount
    held_out: FloatArray
    privacy: Promise | None


async def run_party(
    channel: Channel, costs: Costs, *, job: Job, data: PartyData, workplace: Workplace
) -> PartyOutcome:
    """Take one party through a job.

    Raises:
        PeerError: a peer broke the protocol or is gone.
        RangeExceeded: products could overflow, or values leave the agreed range.
        LabelLeakRefused: this party owns a key and its gradients would tell too much.
        BudgetExhausted: the job would spend more than its privacy budget.
    """
    loss = loss_for(job.job.loss, data.classes)
    party = Party(channel, costs, data.names, data.label_party, loss)
    part = LocalPart(
        job,
        data.table,
        loss=loss,
        classes=data.classes,
        standardize=data.standardize,
        holds_labels=party.holds_labels,
        start=workplace.start,
        make_module=workplace.make_module,
    )
    if workplace.wrap_model is not None:
        part.model = workplace.wrap_model(part.model)
    account = account_of(
        job,
        data.schedule,
        parties=len(data.names),
        outputs=loss.outputs,
        test_rows=len(part.held_out),
    )
    noise = None
    private: LocalModel = part.model
    if account is not None:
        account.require_budget()
        noise = account.noise_at(data.names.index(party.name))
        if noise.gradients is not None and not (party.holds_labels and job.job.algorithm != "fdml"):
            private = PrivateGradients(part.model, noise.gradients, noise.generator)

    def after_round(rounds: int) -> None:
        every = job.output.checkpoint_every
        if workplace.checkpoints is not None and every and rounds % every == 0:
            path = workplace.checkpoints / f"{party.name}.safetensors"
            save_model(path, part.saved(rounds))
        if workplace.progress is not None:
            workplace.progress(rounds)

    algorithm = train_fdml if job.job.algorithm == "fdml" else train_fedbcd
    trained = await algorithm(
        Training(party, job, data, workplace, part, private, noise, after_round)
    )
    return PartyOutcome(
        model=part.saved(trained.rounds),
        rounds=trained.rounds,
        scores=trained.scores,
        key_fingerprint=trained.key.fingerprint if trained.key is not None else None,
        key_bits=trained.key.key_bits if trained.key is not None else None,
        leakage=trained.leakage,
        held_out=part.model.predict(part.held_out),
        privacy=None if account is None else account.after(trained.rounds),
    )
