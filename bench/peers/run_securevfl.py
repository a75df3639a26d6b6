"""This package on the prepared rows: `python run_securevfl.py INPUT.npz OPTIONS`, one JSON line."""

import json
import sys
import time
from typing import Any

import numpy as np

from securevfl import __version__
from securevfl.data.tables import PartyTable, VerticalDataset
from securevfl.job import Job
from securevfl.training import train


def main(path: str, options: dict[str, Any]) -> dict[str, Any]:
    """Train under an exchange; scores are of the models, whoever may see them."""
    data = np.load(path)
    names = ("label", "other")
    widths = {name: data[f"{name}_train"].shape[1] for name in names}
    dataset = VerticalDataset(
        name="prepared",
        parties=tuple(
            PartyTable(
                name,
                tuple(f"{name}{column}" for column in range(widths[name])),
                data[f"{name}_train"],
                data[f"{name}_test"],
            )
            for name in names
        ),
        label_party="label",
        train_labels=data["y_train"],
        test_labels=data["y_test"],
        classes=2,
        standardize=False,  # done, for all sides
        row_digests=data["row_digests"],
    )
    job = Job.of(job=options["job"], exchange=options["exchange"])
    wall, cpu = time.perf_counter(), time.process_time()
    result = train(job, dataset)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "versions": {"securevfl": __version__},
        "wall_s": wall,
        "cpu_s": cpu,
        "bytes": result.costs().bytes_sent,
        "rounds": result.rounds,
        "key_bits": result.key_bits,
        "scores": result.predictions[:, 0].tolist(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))) + "\n")
