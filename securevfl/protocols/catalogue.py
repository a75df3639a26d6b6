"""Every exchange and algorithm by name.

In this package each is a file of its own and a line here; `EXCHANGES.add` and `ALGORITHMS.add`
register those of other packages. A file is imported only when its description is used.
"""

import difflib
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar

from typing_extensions import override

from securevfl.errors import ConfigError
from securevfl.job import OWN_SECTIONS, Job

if TYPE_CHECKING:
    from securevfl.protocols.algorithm import Algorithm
    from securevfl.protocols.exchange import Exchange

D = TypeVar("D", "Exchange", "Algorithm")


class Catalogue(Mapping[str, D], Generic[D]):
    """Descriptions by name; `places` maps names to modules with `DESCRIPTIONS`."""

    def __init__(self, what: str, places: Mapping[str, str]) -> None:
        self._what, self.places = what, dict(places)
        self._known: dict[str, D] = {}

    @override
    def __getitem__(self, name: str) -> D:
        if name not in self._known:
            module = import_module(f"{__package__}.{self.places[name]}")
            self._known |= {each.name: each for each in module.DESCRIPTIONS}
        return self._known[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter({**self.places, **self._known})

    @override
    def __len__(self) -> int:
        return len({**self.places, **self._known})

    def add(self, description: D) -> None:
        """Register a description and its section of jobs; a ConfigError if the name is taken."""
        name, section = description.name, getattr(description, "settings", None)
        if name in self:
            raise ConfigError(f"{self._what} {name!r} is known already")
        if self is ALGORITHMS and name in Job.model_fields:
            raise ConfigError(f"algorithm {name!r}: the name of a section of job files")
        self._known[name] = description
        if section is not None:
            OWN_SECTIONS[name] = section

    def remove(self, name: str) -> None:
        """Remove a description that was added."""
        del self._known[name]
        OWN_SECTIONS.pop(name, None)

    def require(self, name: str) -> None:
        """Check that a name is known."""
        require(name, self, self._what)


EXCHANGES: Catalogue["Exchange"] = Catalogue(
    "exchange",
    {
        "plain": "exchanges.plain",
        "masked": "exchanges.plain",
        "dp": "exchanges.noisy",
        "bfv": "exchanges.under_encryption",
        "paillier": "exchanges.under_encryption",
        "ckks": "exchanges.under_encryption",
        "blind": "blind.description",
    },
)
ALGORITHMS: Catalogue["Algorithm"] = Catalogue(
    "algorithm",
    {
        "fedsgd": "vertical.fedbcd",
        "fedbcd-p": "vertical.fedbcd",
        "fedbcd-s": "vertical.fedbcd",
        "fdml": "vertical.fdml",
        "dbcd": "vertical.dbcd",
        "ftl": "transfer.ftl",
    },
)


def exchange_of(job: Job) -> "Exchange":
    """The exchange that a job names."""
    check_names(job)
    return EXCHANGES[job.exchange.scheme]


def algorithm_of(job: Job) -> "Algorithm":
    """The algorithm that a job names."""
    check_names(job)
    return ALGORITHMS[job.job.algorithm]


def check_names(job: Job) -> None:
    """Check that a job's exchange, algorithm and sections belong together and are known."""
    EXCHANGES.require(job.exchange.scheme)
    ALGORITHMS.require(job.job.algorithm)
    for name in job.own:
        if name != job.job.algorithm:
            raise ConfigError(f"[{name}] is for algorithm {name!r}, not {job.job.algorithm!r}")


def require(name: str, known: Collection[str], what: str) -> None:
    """Check that a name is known; the error names the nearest one."""
    if name not in known:
        nearest = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.0)[0]
        raise ConfigError(
            f"{what} = {name!r}: unknown; nearest is {nearest!r}, known are {', '.join(known)}"
        )
