"""Lists the experiments; with --tables writes the tables of all pages anew."""

import sys

from bench.documents import OUTSIDE, page
from bench.experiment import experiment, experiments


def main(arguments: list[str]) -> None:
    """What is asked and how long it takes, a line each, or the tables."""
    if arguments == ["--tables"]:
        write_tables()
        return
    for name in experiments():
        of = experiment(name)
        seconds = sum(run.seconds for run in of.runs.values())
        asked = of.about.splitlines()[0]
        sys.stdout.write(f"python -m bench.{name:18} about {seconds / 60:3.0f} min: {asked}\n")


def write_tables() -> None:
    """The pages of experiments, and those outside bench/."""
    for of in map(experiment, experiments()):
        (of.folder / "README.md").write_text(of.write_tables(), encoding="utf-8")
    for path in OUTSIDE:
        path.write_text(page(path.read_text(encoding="utf-8"), path.parent), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
