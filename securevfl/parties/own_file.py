"""A party's own file: its name, key, data and policy, seen by nobody else.

With the agreement it makes the whole job of this party.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, Field, ValidationError
from pydantic_core import to_json

from securevfl.errors import ConfigError, DataError
from securevfl.files import toml_tables
from securevfl.job import DataSettings, Job, PartyName, Section, first_problem
from securevfl.parties.identity import parse_public
from securevfl.recipe import Preprocessing

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


def _identity(text: str) -> str:
    parse_public(text)
    return text


def _host_port(text: str) -> str:
    parts = urlsplit(f"//{text}")
    if not parts.hostname or parts.port is None or parts.netloc != text or "@" in text:
        raise ValueError("expected HOST:PORT, as in 0.0.0.0:7000")
    return text


def _proxy(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme != "http" or not parts.hostname or not parts.port or parts.path.strip("/"):
        raise ValueError("expected http://HOST:PORT")
    return text


class Policy(Section):
    """`[policy]`: what this party accepts of an agreement and of its peers.

    What it does not accept ends before any data are read. Nothing here limits how long a job takes
    or how much memory it needs.

    Attributes:
        exchanges: schemes that it accepts; `plain` hides nothing, so it is not among them.
        algorithms: algorithms that it accepts; all by default.
        peers: identities by party, as in { shop = "…" }. If not empty, only these organizations may
            take part, under these names.
        predictions: how the label party may see this party's predictions: singly, which shows it
            how far any two people are apart; summed (`masked`); or hidden (hide = "both", `blind`).
        residuals: at the label party, how the others may see residuals, and with them the labels:
            hidden, noisy, or clear, which an algorithm also needs whose parties all hold labels.
        least_label_noise: smallest label_noise_multiplier, where noisy residuals are accepted.
        most_epsilon: under `dp`, the largest privacy.release_budget or privacy.budget; a job
            without either is not accepted.
        most_delta: under `dp`, the largest privacy.delta.
        least_checks: smallest exchange.checks of `blind`.
        least_key_bits: smallest exchange.key_bits.
        most_rounds: largest number of rounds.
        most_repeated_rounds: how many rounds a job may take again in all after interruptions; each
            tells a peer that cheats as much as one round more.
        allow_label_leak: accept a job that sets allow_label_leak.
        allow_feature_leak: accept a job that sets allow_feature_leak.
        allow_scores_by_row: accept scores = "rows".
        allow_seeded_start: accept start = "seeded", initial weights that everybody can compute.
        allow_noise_seed: accept privacy.noise_seed, noise that everybody can compute.
        allow_scaling: accept standardize = false, and job.bounds: the largest column outweighs the
            others, so that one message of predictions tells its values.
        allow_head: accept a head, which shows the label party several numbers a row.
        allow_he_per_step: accept he_per_step, which shows gradients of every local step.
        fewest_rows: smallest number of training rows in common.
        least_overlap: smallest share of its own ids that must be in common.
        most_ids_ratio: how many times its own number of ids a peer may bring, because who brings a
            list of all people learns who is a customer.
        alignments_per_peer_per_year: how often its ids are compared with a peer's, to train.
        scorings_per_peer_per_year: the same, to score: once a command, and again each time that it
            is interrupted.
        scores_per_day: at a feature party, the most rows that are scored a day, over all jobs; 0
            scores none. A score shows this party's part of it, whatever `predictions` says.
        score_digits: at the label party, digits that a scores file has: decimals of
            probabilities, else significant digits. Its own program sees all.
    """

    exchanges: tuple[str, ...] = ("masked", "dp", "bfv", "paillier", "ckks", "blind")
    algorithms: tuple[str, ...] | None = None
    peers: Mapping[str, Annotated[str, AfterValidator(_identity)]] = {}
    predictions: Literal["singly", "summed", "hidden"] = "singly"
    residuals: Literal["hidden", "noisy", "clear"] = "hidden"
    least_label_noise: Positive = 1.0
    most_epsilon: Positive = 10.0
    most_delta: Positive = 1e-5
    least_checks: Count = 8
    least_key_bits: Count = 3072
    most_rounds: Count = 10_000
    most_repeated_rounds: Count = 50
    allow_label_leak: bool = False
    allow_feature_leak: bool = False
    allow_scores_by_row: bool = False
    allow_seeded_start: bool = False
    allow_noise_seed: bool = False
    allow_scaling: bool = False
    allow_head: bool = False
    allow_he_per_step: bool = False
    fewest_rows: Count = 100
    least_overlap: Share = 0.0
    most_ids_ratio: Positive = 10.0
    alignments_per_peer_per_year: Count = 12
    scorings_per_peer_per_year: Count = 500
    scores_per_day: Count = 10_000
    score_digits: Annotated[int, Field(ge=1, le=17)] = 3


class OwnFile(Section):
    """What one party keeps to itself, in `party.toml`. Paths are relative to that file.

    Attributes:
        name: of the party, as in the agreement.
        key: file with the private key of its identity.
        state: folder for what a job needs to go on after a restart, for signatures, and for counts
            of alignments.
        output: folder of its own model and results.
        guard_directory: records of what earlier jobs revealed; by default those of this user.
        listen: HOST:PORT where it listens for peers; without it, it only connects to others.
        proxy: http://HOST:PORT of a proxy through which it connects (CONNECT).
        patience_hours: how long it waits for peers before it ends.
        workers: threads of its arithmetic, see `ExchangeSettings`.
    """

    name: PartyName
    key: Path
    state: Path = Path("state")
    output: Path = Path("models")
    guard_directory: Path | None = None
    listen: Annotated[str, AfterValidator(_host_port)] | None = None
    proxy: Annotated[str, AfterValidator(_proxy)] | None = None
    patience_hours: Positive = 24.0
    workers: Annotated[int, Field(ge=1)] | None = None
    data: DataSettings = DataSettings()
    preprocess: Preprocessing | None = None
    policy: Policy = Policy()

    def own_job(self, job: Job) -> Job:
        """An agreement's job with this party's data, preprocessing, workers and output folder.

        Its hash is the agreement's; the other parties' data stay unknown.

        Raises:
            ConfigError: the party is not in the job, or its file names no data.
        """
        if self.name not in (party.name for party in job.party):
            raise ConfigError(f"party {self.name!r} is not in the agreement")
        if self.data.data is None:
            raise ConfigError(f"party {self.name!r}: data is missing, in [data] of its own file")
        own = {key: getattr(self.data, key) for key in self.data.model_fields_set}
        parties = tuple(
            party.model_copy(update={**own, "preprocess": self.preprocess})
            if party.name == self.name
            else party
            for party in job.party
        )
        return job.model_copy(
            update={
                "party": parties,
                "exchange": job.exchange.model_copy(update={"workers": self.workers}),
                "output": job.output.model_copy(update={"directory": self.output}),
            }
        )


SECTIONS: dict[str, type[BaseModel]] = {
    "data": DataSettings,
    "preprocess": Preprocessing,
    "policy": Policy,
}


def read_own_file(path: Path) -> OwnFile:
    """Read a party's own file; its paths become those from here.

    Raises:
        DataError: it cannot be read.
        ConfigError: not TOML, an unknown key, or a value out of range; one line.
    """
    try:
        tables = toml_tables(path.read_text(encoding="utf-8"))
        found = OwnFile.model_validate_json(to_json(tables, inf_nan_mode="constants"), strict=True)
    except FileNotFoundError as error:
        raise DataError(
            f"no party file {path}: securevfl party init makes one, --party names another"
        ) from error
    except OSError as error:
        raise DataError(f"party file {path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        top = [key for key in OwnFile.model_fields if key not in SECTIONS]
        raise ConfigError(f"{path}: {first_problem(error, SECTIONS, top=top)}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise ConfigError(f"{path}: not TOML: {error}") from error
    return _beside(found, path.parent)


def _beside(found: OwnFile, folder: Path) -> OwnFile:
    data = found.data.model_copy(update=_paths(found.data, folder))
    return found.model_copy(update={**_paths(found, folder), "data": data})


def _paths(section: Section, folder: Path) -> dict[str, Path]:
    """The section's paths, of which a `~` is this user's home."""
    return {
        key: folder / value.expanduser()
        for key, value in dict(section).items()
        if isinstance(value, Path)
    }
