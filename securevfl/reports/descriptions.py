"""Tables of exchanges and algorithms for documents, written from their descriptions."""

import json
from collections.abc import Iterable

from securevfl.job import Job
from securevfl.protocols.catalogue import ALGORITHMS, EXCHANGES
from securevfl.protocols.exchange import Exchange, Learns, Variant
from securevfl.protocols.plan import Plan

Table = list[list[str]]
PARTIES = (2, 3, 5)


def who_learns_what() -> Table:
    """A heading, then a line for each role; exchanges that show the same share their lines."""
    found: dict[Learns, list[tuple[str, Variant]]] = {}
    for exchange, variant in _all():
        learns = exchange.learns(job_of(exchange, variant))
        found.setdefault(learns, []).append((exchange.name, variant))
    table = [["exchange", "party", "learns", "does not learn"]]
    for learns, who in found.items():
        table.append([_together(who), "label party", learns.label_party, learns.label_party_not])
        table.append(["", "feature party", learns.feature_party, learns.feature_party_not])
    for algorithm in ALGORITHMS.values():
        for number, role in enumerate(algorithm.roles):
            table.append([f"algorithm `{algorithm.name}`" if number == 0 else "", *role])
    return table


def what_to_choose() -> Table:
    """A heading, then a line for exchanges that show the same at the same number of messages."""
    found: dict[tuple[str, str, str], list[tuple[str, Variant]]] = {}
    for exchange, variant in _all():
        job = job_of(exchange, variant)
        learns = exchange.learns(job)
        counts = [
            str(exchange.messages(job.exchange, each)) if each >= exchange.fewest_parties else "-"
            for each in PARTIES
        ]
        shown = (learns.label_party, learns.feature_party, " / ".join(counts))
        found.setdefault(shown, []).append((exchange.name, variant))
    parties = " / ".join(map(str, PARTIES))
    heading = ["exchange", "label party learns", "feature party learns", f"messages, K = {parties}"]
    return [heading, *([_together(who), *shown] for shown, who in found.items())]


def learned_in(plan: Plan) -> list[tuple[str, str]]:
    """What each role of a job learns: those of its algorithm, or else of its exchange."""
    roles = plan.algorithm.roles_in(plan)
    if roles:
        return [(role, learns) for role, learns, _ in roles]
    learns = plan.learns
    return [("label party", learns.label_party), ("feature party", learns.feature_party)]


def job_of(exchange: Exchange, variant: Variant) -> Job:
    """A job under an exchange with the settings of a variant."""
    sections = {**variant, "exchange": {"scheme": exchange.name, **variant.get("exchange", {})}}
    return Job.of(**sections)


def _all() -> list[tuple[Exchange, Variant]]:
    return [(each, variant) for each in EXCHANGES.values() for variant in each.variants]


def _together(exchanges: Iterable[tuple[str, Variant]]) -> str:
    """Names with the same settings beside each other, and then the settings."""
    by_settings: dict[str, list[str]] = {}
    for name, variant in exchanges:
        settings = [pair for section in variant.values() for pair in section.items()]
        said = [f" with `{key} = {json.dumps(value)}`" for key, value in settings]
        by_settings.setdefault("".join(said), []).append(f"`{name}`")
    return "; ".join(", ".join(names) + said for said, names in by_settings.items())
