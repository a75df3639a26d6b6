"""What does private alignment cost, by how many ids each party has?"""

import resource
from collections.abc import Iterator
from time import perf_counter
from typing import Any

from pydantic import PositiveInt

from bench.experiment import Experiment, Network, Run, Settings, main
from securevfl.benchmarks.progress import Report
from securevfl.job import NetworkSettings
from securevfl.parties.alignment import Common, align
from securevfl.reports.tables import Column, Row, seconds
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs
from securevfl.runtime.simulation import Program, simulate


class AlignmentSettings(Settings):
    """Parties that have equally many ids; half of them are common to all."""

    ids: PositiveInt = 100_000
    parties: PositiveInt = 2
    network: Network = NetworkSettings(preset="wan")


def alignment(settings: AlignmentSettings, report: Report) -> Iterator[dict[str, Any]]:
    """Each party's seconds on a machine like this one, and those of all on this one: one row."""
    count = settings.ids
    names = [f"party {place}" for place in range(settings.parties)]
    shift = count // (2 * max(settings.parties - 1, 1))

    def program(place: int) -> Program[Common]:
        ids = [f"C-{number:09}".encode() for number in range(place * shift, place * shift + count)]

        async def run(channel: Channel, costs: Costs) -> Common:
            return await align(
                channel,
                costs,
                names=names,
                label_party=names[0],
                context=bytes(32),
                train=ids,
                progress=lambda done, total: report(channel.name, done, total),
            )

        return run

    programs = {name: program(place) for place, name in enumerate(names)}
    started, cpu = perf_counter(), _cpu_seconds()
    done = simulate(programs, settings.network.resolve())
    ledgers = done.costs.values()
    yield {
        "ids": count,
        "parties": settings.parties,
        "in_common": len(done.results[names[0]].train),
        "apart_s": max(ledger.now for ledger in ledgers),
        "here_s": perf_counter() - started,
        "cpu_s": (_cpu_seconds() - cpu) / settings.parties,
        "bytes_sent": max(sum(ledger.bytes_sent.values()) for ledger in ledgers),
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


COLUMNS: tuple[Column[Row], ...] = (
    ("ids a party", lambda row: f"{row['ids']:,}"),
    ("parties", lambda row: str(row["parties"])),
    ("in common", lambda row: f"{row['in_common']:,}"),
    ("machines apart", lambda row: seconds(row["apart_s"])),
    ("all on one", lambda row: seconds(row["here_s"])),
    ("CPU a party", lambda row: seconds(row["cpu_s"])),
    ("sent by one", lambda row: f"{row['bytes_sent'] / 1e6:.1f} MB"),
    ("memory of all", lambda row: f"{row['peak_bytes'] / 1e6:,.0f} MB"),
)

EXPERIMENT = Experiment(
    name="alignment",
    about=__doc__ or "",
    runs={
        "two": Run(20, {"ids": 100_000}),
        "three": Run(60, {"ids": 100_000, "parties": 3}),
        "million": Run(150, {"ids": 1_000_000}),
    },
    quick={"ids": 200},
    settings=AlignmentSettings,
    measure=alignment,
    columns=COLUMNS,
)

if __name__ == "__main__":
    main(EXPERIMENT)
