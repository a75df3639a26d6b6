# /// script
# requires-python = "==3.11.*"
# dependencies = [
#   "spu==0.9.5", "jax==0.4.34", "jaxlib==0.4.34", "numpy==1.26.4", "scipy==1.17.1",
#   "ml_dtypes==0.5.4", "opt_einsum==3.4.0", "cachetools==8.0.2", "cloudpickle==3.1.3",
# ]
# ///
"""Logistic regression in SPU's simulator: `python run_spu.py INPUT.npz OPTIONS`, one JSON line.

Both parties are threads of one process, and nothing but the final weights is opened. The program is
`fit_manual_grad` of SPU's `examples/python/ml/jax_lr`, on given batches. With `sigmoid = "line"` it
takes 1/2 + z/8 as `t1_sig` in SPU's `ss_lr`, which is also the default of SecretFlow's SS-SGD.
"""

import json
import os
import re
import sys
import time
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from spu import libspu
from spu.utils import frontend, simulation

LINK = re.compile(r"Link details: total send bytes (\d+), recv bytes (\d+)")


def main(path: str, options: dict[str, Any]) -> dict[str, Any]:
    """Train under a protocol; compiling is not counted, sharing the inputs is."""
    data = np.load(path)
    visits, rate = data["visits"], options["learning_rate"]
    sigmoid = jax.nn.sigmoid if options["sigmoid"] == "exact" else lambda z: 0.5 + z / 8
    inputs = (data["label_train"], data["other_train"], data["y_train"].astype(float))

    def fit(label: Any, other: Any, labels: Any) -> Any:  # noqa: ANN401
        """Gradient steps on the batches, each a run of rows."""
        columns, intercept = jnp.concatenate((label, other), axis=1), 0.0
        weights = jnp.zeros(columns.shape[1])
        for rows in visits:
            span = slice(rows[0], rows[-1] + 1)
            batch = columns[span]
            errors = sigmoid(batch @ weights + intercept) - labels[span]
            weights -= rate * (batch.T @ errors) / len(rows)
            intercept -= rate * jnp.mean(errors)
        return weights, intercept

    config = libspu.RuntimeConfig(
        protocol=getattr(libspu.ProtocolKind, options["protocol"]), field=libspu.FieldType.FM64
    )
    config.enable_pphlo_profile = True  # counts the bytes
    start = time.perf_counter()
    program, _ = frontend.compile(
        frontend.Kind.JAX,
        fit,
        inputs,
        {},
        ["label", "other", "labels"],
        [libspu.Visibility.VIS_SECRET] * 3,
        lambda outputs: [f"out{number}" for number in range(len(outputs))],
    )
    wall, cpu = time.perf_counter(), time.process_time()
    start = wall - start
    weights, intercept = simulation.Simulator(2, config)(program, *inputs)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    held_out = np.hstack([data["label_test"], data["other_test"]])
    return {
        "versions": {name: version(name) for name in ("spu", "jax")},
        "start_s": start,
        "wall_s": wall,
        "cpu_s": cpu,
        "scores": (held_out @ np.asarray(weights) + float(intercept)).tolist(),
    }


if __name__ == "__main__":
    # What SPU sent stands in its log alone, on the descriptor of standard output or error.
    log = os.memfd_create("log")
    shown = os.dup(1)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        found = main(sys.argv[1], json.loads(sys.argv[2]))
    finally:
        text = os.pread(log, os.fstat(log).st_size, 0).decode(errors="replace")
        os.dup2(shown, 1)
    # Of one of the two parties: what it sent, and what the other did.
    found["bytes"] = sum(map(int, LINK.findall(text)[0]))
    os.write(1, (json.dumps(found) + "\n").encode())
