"""What a party's policy refuses: of an agreement before any data are read, then of alignments.

Every setting by which a proposer could weaken another party has a key in `[policy]`.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import TypeAdapter

from securevfl.errors import ConfigError
from securevfl.files import only_one, reading, replace_file
from securevfl.parties.agreement import Agreement
from securevfl.parties.identity import public_text
from securevfl.parties.own_file import Policy
from securevfl.protocols.catalogue import algorithm_of, exchange_of
from securevfl.protocols.plan import DEFAULT_CHECKS

# Each list from what shows least to what shows most.
PREDICTIONS = ("hidden", "summed", "singly")
RESIDUALS = ("hidden", "noisy", "clear")


_RECORD, YEAR = "record of alignments", timedelta(days=365)
_TIMES = TypeAdapter(dict[str, list[datetime]])


def refusals(policy: Policy, agreement: Agreement, name: str) -> list[str]:
    """Why a party's policy does not accept an agreement, a line each; empty if it does.

    Each line names the key of the policy that would have to change.

    Raises:
        ConfigError: the party is not in the agreement, or the job's exchange or algorithm is
            unknown.
    """
    if name not in agreement.identities:
        raise ConfigError(f"party {name!r} is not in the agreement")
    found = (*_peers(policy, agreement, name), *_shown(policy, agreement, name))
    found = (*found, *_settings(policy, agreement), *_noise(policy, agreement))
    return [f"{reason} (policy.{key})" for key, reason in found]


def count_alignment(
    state: Path,
    policy: Policy,
    agreement: Agreement,
    name: str,
    kind: str = "alignments",
) -> None:
    """Note that ids are about to be compared with all peers, by their identities.

    All are charged, whoever breaks it off: no party can tell who has learned something by then. The
    records, of "alignments" to train and of "scorings", are in the party's `state` folder.

    Raises:
        ConfigError: they were compared too often with one of them within a year.
        DataError: the record cannot be read or written.
    """
    path, now, key = state / f"{kind}.json", datetime.now(UTC), f"{kind}_per_peer_per_year"
    with only_one(path, _RECORD):
        with reading(f"{_RECORD} {path}"):
            known = _TIMES.validate_json(path.read_bytes()) if path.exists() else {}
        for peer, public in agreement.identities.items():
            if peer == name:
                continue
            times = [at for at in known.get(public_text(public), []) if now - at < YEAR]
            if len(times) >= getattr(policy, key):
                raise ConfigError(
                    f"ids were compared with party {peer!r} {len(times)} times within a year "
                    f"(policy.{key})"
                )
            known[public_text(public)] = [*times, now]
        replace_file(path, _TIMES.dump_json(known), _RECORD)


_Refused = Iterator[tuple[str, str]]


def _peers(policy: Policy, agreement: Agreement, name: str) -> _Refused:
    for peer, public in agreement.identities.items():
        if policy.peers and peer != name and policy.peers.get(peer) != public_text(public):
            known = "under another identity" if peer in policy.peers else "which is not listed"
            yield "peers", f"party {peer!r} takes part, {known}"


def _shown(policy: Policy, agreement: Agreement, name: str) -> _Refused:
    """What the exchange and the algorithm show the others of this party."""
    job = agreement.job
    algorithm, exchange = algorithm_of(job), exchange_of(job)
    if exchange.name not in policy.exchanges:
        yield "exchanges", f"exchange {exchange.name!r} is not among {', '.join(policy.exchanges)}"
    if policy.algorithms is not None and algorithm.name not in policy.algorithms:
        among = ", ".join(policy.algorithms)
        yield "algorithms", f"algorithm {algorithm.name!r} is not among {among}"
    learns, everywhere = exchange.learns(job), algorithm.labels_everywhere
    is_label_party = name == agreement.label_party
    if (everywhere or not is_label_party) and _shows_more(
        PREDICTIONS, learns.predictions, policy.predictions
    ):
        yield "predictions", f"others see this party's predictions {learns.predictions}"
    residuals = "clear" if everywhere else learns.residuals
    if is_label_party and _shows_more(RESIDUALS, residuals, policy.residuals):
        yield "residuals", f"the others learn labels from residuals, which are {residuals}"
    noise = job.privacy.label_noise_multiplier
    if is_label_party and residuals == "noisy" and noise < policy.least_label_noise:
        yield "least_label_noise", f"label_noise_multiplier = {noise:g} hides labels too little"


def _shows_more(steps: tuple[str, ...], shown: str, most: str) -> bool:
    return steps.index(shown) > steps.index(most)


def _settings(policy: Policy, agreement: Agreement) -> _Refused:
    job = agreement.job
    settings, exchange = job.job, job.exchange
    checks = DEFAULT_CHECKS if exchange.checks is None else exchange.checks
    takes_checks = "checks" in exchange_of(job).takes
    allowed = {
        "label_leak": (settings.allow_label_leak, "the job sets allow_label_leak = true"),
        "feature_leak": (settings.allow_feature_leak, "the job sets allow_feature_leak = true"),
        "seeded_start": (
            settings.start == "seeded",
            "start = 'seeded': everybody can compute the initial weights",
        ),
        "scores_by_row": (
            exchange.scores == "rows",
            "scores = 'rows' shows each held-out row's prediction",
        ),
        "head": (
            settings.head != "sum",
            f"head = {settings.head!r} shows the label party several numbers a row",
        ),
        "he_per_step": (
            exchange.he_per_step,
            "he_per_step shows gradients of every local step",
        ),
        "scaling": (
            settings.standardize is False or bool(settings.bounds),
            "standardize = false or bounds let one column outweigh all others, and be read",
        ),
        "noise_seed": (
            job.privacy.noise_seed is not None,
            "noise_seed: everybody can compute the noise",
        ),
    }
    for key, (is_so, reason) in allowed.items():
        if is_so and not getattr(policy, f"allow_{key}"):
            yield f"allow_{key}", reason
    if takes_checks and checks < policy.least_checks:
        yield "least_checks", f"checks = {checks}, fewer than {policy.least_checks}"
    bits = exchange.key_bits
    if bits is not None and bits < policy.least_key_bits:
        yield "least_key_bits", f"key_bits = {bits}, fewer than {policy.least_key_bits}"
    if settings.rounds > policy.most_rounds:
        yield "most_rounds", f"rounds = {settings.rounds}, more than {policy.most_rounds}"


def _noise(policy: Policy, agreement: Agreement) -> _Refused:
    """Guarantees that are too weak, where an exchange adds noise."""
    privacy = agreement.job.privacy
    if not exchange_of(agreement.job).adds_noise:
        return
    budgets = [each for each in (privacy.release_budget, privacy.budget) if each is not None]
    if not budgets:
        yield "most_epsilon", "no release_budget or budget limits the ε of what is released"
    elif min(budgets) > policy.most_epsilon:
        yield "most_epsilon", f"ε up to {min(budgets):g}, over {policy.most_epsilon:g}"
    if privacy.delta > policy.most_delta:
        yield "most_delta", f"delta = {privacy.delta:g}, over {policy.most_delta:g}"
