"""The data of `bench joint`: a set among several numbers of parties, or a job's own."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securevfl.cli import options
from securevfl.errors import ConfigError
from securevfl.job import read_job

if TYPE_CHECKING:
    from securevfl.data.tables import VerticalDataset


@dataclass(frozen=True)
class JointData:
    """A data set, or what a job file says of its parties' own files."""

    job: Annotated[
        Path | None, typer.Argument(help="Job file: its parties and their data, nothing else.")
    ] = None
    dataset: Annotated[
        str | None, typer.Option(help="Data set by name; breast_cancer where no job is given.")
    ] = None
    parties: Annotated[
        tuple[int, ...], typer.Option(help="Values of K, by commas; 2,5,17 where no job is given.")
    ] = ()
    data_dir: options.DataDir = None

    def load(self) -> "list[VerticalDataset]":
        """The data by number of parties.

        Raises:
            ConfigError: a job beside what only a data set has, or see `Data.load`.
            DataError: missing or malformed files.
        """
        if self.job is None:
            name = self.dataset or "breast_cancer"
            return [
                options.dataset(name, count, self.data_dir) for count in self.parties or (2, 5, 17)
            ]
        if self.dataset is not None or self.parties:
            raise ConfigError("--dataset and --parties: the job file says what data and parties")
        from securevfl.data.tables import as_arrays

        return [as_arrays(options.job_dataset(read_job(self.job), self.job, self.data_dir))]
