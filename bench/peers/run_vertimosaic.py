# /// script
# requires-python = "==3.11.*"
# dependencies = ["vertimosaic==0.3.0", "numpy==2.4.6"]
# ///
"""VertiMosaic on the prepared rows: `python run_vertimosaic.py INPUT.npz OPTIONS`, one JSON line.

Its logistic regression, on full batches, or its boosted trees over histograms, as they come.
"""

import json
import sys
import time
from importlib.metadata import version
from typing import Any

import numpy as np
from vertimosaic.models import VFLHistGBDT, VFLLogisticRegression
from vertimosaic.parties import ActiveParty, PassiveParty


def main(path: str, options: dict[str, Any]) -> dict[str, Any]:
    """Train a model over its transport in memory, whose estimate of bytes is reported."""
    data = np.load(path)
    model = (
        VFLHistGBDT(**options["trees"])
        if "trees" in options
        else VFLLogisticRegression(
            learning_rate=options["learning_rate"],
            max_iter=len(data["visits"]),
            tolerance=0.0,
            gradient_clip=None,
        )
    )

    def parties(part: str) -> tuple[ActiveParty, PassiveParty]:
        return (
            ActiveParty("label", data[f"label_{part}"], data[f"y_{part}"]),
            PassiveParty("other", data[f"other_{part}"]),
        )

    active, passive = parties("train")
    wall, cpu = time.perf_counter(), time.process_time()
    model.fit(active, [passive])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    sent = model.transport.estimated_payload_bytes
    test = parties("test")
    if "trees" in options:
        for own, held_out in zip((active, passive), test, strict=True):
            own.share_histogram_routing_state_with(held_out)
    return {
        "versions": {"vertimosaic": version("vertimosaic")},
        "wall_s": wall,
        "cpu_s": cpu,
        "bytes": sent,
        "scores": model.decision_function(list(test)).tolist(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))) + "\n")
