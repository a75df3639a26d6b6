"""Names of exchanges and algorithms, for whoever asks before anything else is imported.

The catalogue has what stands behind each of them, and adds the names of other packages' ones.
"""

import difflib
from collections.abc import Collection

from securevfl.errors import ConfigError
from securevfl.job import Job

EXCHANGES = ["plain", "masked", "dp", "bfv", "paillier", "ckks", "blind"]
ALGORITHMS = ["fedsgd", "fedbcd-p", "fedbcd-s", "fdml", "dbcd", "ftl"]


def check_names(job: Job) -> None:
    """Check that a job's exchange and algorithm are known, and its own section the algorithm's.

    Raises:
        ConfigError: one is not, where the message names the nearest; or another's section.
    """
    require(job.exchange.scheme, EXCHANGES, "exchange")
    require(job.job.algorithm, ALGORITHMS, "algorithm")
    for name in job.own:
        if name != job.job.algorithm:
            raise ConfigError(f"[{name}] is for algorithm {name!r}, not {job.job.algorithm!r}")


def require(name: str, known: Collection[str], what: str) -> None:
    """Check that a name is known.

    Raises:
        ConfigError: it is not; the message names the nearest.
    """
    if name not in known:
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
        raise ConfigError(
            f"{what} = {name!r}: unknown; nearest is {nearest!r}, known are {', '.join(known)}"
        )
