"""One party's program that scores new rows with its part of a trained model.

Every feature party computes H_k of its rows and sends it as in rounds: in clear, under masks that
cancel in the sum, or clipped with noise. The label party adds its own and obtains H of every row.

Learns:
    label party: H of every new row and so Σ_{k<K} H_k, under any exchange. Between two parties
        this is the other's H_B, which therefore travels in clear. Among more parties it sees only
        the sum where training hides single predictions (`masked`, `hide = "both"`), else every
        H_k; under `dp` one noisy release of each; with a head every u_k.
    feature party: which rows are scored, and no score.
Guarantees: against semi-honest parties. Each feature party counts the models that score its rows
    (`guards.feature_guard`).
Source: docs/decisions/0028-scoring-new-rows.md.
"""

from dataclasses import dataclass
from pathlib import Path

from securevfl.arrays import FloatArray
from securevfl.crypto.masks import MaskKey, PairwiseMasks
from securevfl.errors import PeerViolation
from securevfl.job import Job
from securevfl.models.losses import loss_for
from securevfl.models.storage import ModelHeader, SavedModel
from securevfl.protocols.algorithm import Algorithm
from securevfl.protocols.exchange import Exchange, Shown
from securevfl.protocols.guards.failed_checks import require_trust
from securevfl.protocols.guards.feature_guard import require_scoring_guard
from securevfl.protocols.guards.people import CountedJob, Digests
from securevfl.protocols.session.agreement import proof_of_rows, require_same_rows
from securevfl.protocols.session.gathering import Party, Step
from securevfl.runtime.channel import Channel, exchange_with
from securevfl.runtime.costs import SETUP, Costs
from securevfl.wire.codec import Message, message_kind


@message_kind(55, stage="setup")
class ScoringHello(Message):
    """Every party to every other: its model and its rows.

    `proof_of_rows` is of a hash of the ids in their order; `mask_key` a fresh X25519 public key.
    """

    job_hash: bytes
    rounds: int
    rows: int
    proof_of_rows: bytes
    mask_key: bytes


async def agree_on_rows(
    party: Party, header: ModelHeader, rows: int, rows_hash: bytes
) -> PairwiseMasks:
    """Introduce this party to all others, and check that they score the same.

    Returns:
        Masks for this scoring alone.

    Raises:
        PeerViolation: a peer has a part of another model, or other rows.
    """
    async with party.costs.compute(SETUP):
        mask_key = MaskKey.generate()
        job_hash = bytes.fromhex(header.job_hash)
        public = mask_key.public_bytes
        proof = proof_of_rows(party.name, job_hash, public, rows_hash)
        hello = ScoringHello(job_hash, header.rounds, rows, proof, public)
    hellos = await exchange_with(party.channel, party.others, hello)
    for name, other in hellos.items():
        _check_same(name, other, hello)
        expected = proof_of_rows(name, job_hash, other.mask_key, rows_hash)
        require_same_rows(name, other.proof_of_rows, expected)
    async with party.costs.compute(SETUP):
        keys = {name: other.mask_key for name, other in hellos.items()}
        return mask_key.agree(party.name, keys, rows_hash)


def _check_same(peer: str, theirs: ScoringHello, ours: ScoringHello) -> None:
    if theirs.job_hash != ours.job_hash:
        raise PeerViolation(
            f"{peer} scores with a part of another model: of job {theirs.job_hash[:8].hex()}, "
            f"here {ours.job_hash[:8].hex()}"
        )
    if theirs.rounds != ours.rounds:
        raise PeerViolation(
            f"{peer} scores with a part after {theirs.rounds} rounds, here {ours.rounds}"
        )
    if theirs.rows != ours.rows:
        raise PeerViolation(f"{peer} scores {theirs.rows} rows, here {ours.rows}")


@dataclass(frozen=True)
class ScoringPlan:
    """What all parties know before they score."""

    job: Job
    algorithm: Algorithm
    exchange: Exchange
    names: tuple[str, ...]
    label_party: str

    @property
    def shown(self) -> Shown:
        """How the label party sees the others' predictions; ConfigError if the algorithm cannot."""
        return self.algorithm.new_rows(self.job, self.exchange, len(self.names))


@dataclass(frozen=True, eq=False)
class ScoringPlace:
    """The inputs of a party's program.

    Attributes:
        model: its part, from its own file.
        features: its columns of the rows, unscaled, in the model's order, shape (rows, P).
        rows_hash: SHA-256 over the rows' ids in their order.
        guard_directory: of the feature party's record; None records nothing.
        raw: its rows before a recipe, where it has one.
        source: the file that the rows are of, if they are of one.
        people: digests of their ids, shape (rows,), if they have ids beyond that file.
    """

    model: SavedModel
    features: FloatArray
    rows_hash: bytes
    guard_directory: Path | None = None
    raw: FloatArray | None = None
    source: str = ""
    people: Digests | None = None


async def score_rows(
    channel: Channel, costs: Costs, *, plan: ScoringPlan, place: ScoringPlace
) -> FloatArray | None:
    """Take one party through the scoring of new rows.

    Returns:
        H, shape (rows, C), at the label party; real targets in their own units.

    Raises:
        PeerError: a peer failed, violated the protocol, or has another model or other rows.
        ConfigError: a peer has failed a check of encrypted replies before.
        FeatureLeakRefused: other models have revealed too much of this party's rows.
        RangeExceeded: predictions leave the range of masks.
        BudgetExhausted: a noisy release would exceed the job's budget.
    """
    model, header, job = place.model, place.model.header, plan.job
    party = Party(
        channel, costs, plan.names, plan.label_party, loss_for(header.loss, header.classes)
    )
    learns = plan.exchange.learns(job)
    directory, write_down = place.guard_directory, None
    require_trust(directory, party.others)
    recipe = header.recipe
    exact = header.network is None and not plan.exchange.adds_noise
    counts = not party.holds_labels and (exact or plan.exchange.counts_held_out(job))
    if directory is not None and counts:
        write_down = require_scoring_guard(
            directory,
            model,
            place.features,
            place.features if place.raw is None else place.raw,
            CountedJob.of(job, bytes.fromhex(header.job_hash)),
            names=header.columns if place.raw is None or recipe is None else recipe.raw_columns,
            peers=party.others,
            parties=job.party,
            source=place.source,
            ids=place.people,
            rounds_show=learns.predictions == "singly",
            allowed=job.job.allow_feature_leak,
        )
    async with costs.compute(SETUP):
        model.predict(place.features[:1])  # loads what a network needs
    masks = await agree_on_rows(party, header, len(place.features), place.rows_hash)
    gathering = plan.exchange.new_rows(
        job, party, masks, shown=plan.shown, given=header.given, head=model.top
    )
    if write_down is not None:
        write_down()
    async with costs.compute("local"):
        own = model.predict(place.features)
    others, total = await gathering.batch(Step(0, (), party.feature_parties), own), None
    if others is not None:
        async with costs.compute("local"):
            total = model.in_target_units(others + own)
    costs.end_round()
    return total
