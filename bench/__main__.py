"""Lists the experiments; with --tables writes the tables of all their pages anew."""

import sys

from bench.experiment import experiment, experiments


def main(arguments: list[str]) -> None:
    """What is asked and how long it takes, a line each, or the tables."""
    for name in experiments():
        of = experiment(name)
        if arguments == ["--tables"]:
            (of.folder / "README.md").write_text(of.write_tables(), encoding="utf-8")
            continue
        seconds = sum(run.seconds for run in of.runs.values())
        asked = of.about.splitlines()[0]
        sys.stdout.write(f"python -m bench.{name:16} about {seconds / 60:3.0f} min: {asked}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
