# /// script
# requires-python = "==3.11.*"
# dependencies = [
#   "pyfate==2.2.0", "accelerate==0.27.2", "antlr4-python3-runtime==4.9.3", "beautifultable==1.1.0",
#   "certifi==2026.10.19.post1", "charset-normalizer==3.5.3", "click==8.1.7", "cloudpickle==2.1.0",
#   "Deprecated==1.3.1", "fate_utils==0.1.0", "filelock==4.3.1", "fsspec==2026.9.0",
#   "grpcio==1.62.1", "huggingface_hub==0.36.2", "idna==3.20", "importlib_metadata==8.4.0",
#   "Jinja2==3.1.6", "joblib==1.5.3", "lmdb==1.4.1", "markdown-it-py==4.3.0", "MarkupSafe==3.0.4",
#   "mdurl==0.1.2", "mmh3==4.1.0", "mpmath==1.3.0", "networkx==3.6.1", "numpy==1.26.4",
#   "omegaconf==2.3.0", "opentelemetry-api==1.27.0", "opentelemetry-sdk==1.27.0",
#   "opentelemetry-semantic-conventions==0.48b0", "packaging==26.4", "pandas==2.2.3",
#   "protobuf==4.24.4", "psutil==7.2.2", "pydantic==1.10.12", "Pygments==2.21.0",
#   "python-dateutil==4.0.0", "pytz==2026.6", "PyYAML==6.0.4", "regex==2026.11.19",
#   "requests==2.34.2", "rich==13.7.1", "ruamel.yaml==0.16.0", "safetensors==0.4.1",
#   "scikit-learn==1.4.1.post1", "scipy==1.17.1", "setuptools==84.2.1", "sympy==1.14.0",
#   "threadpoolctl==3.8.0", "tokenizers==0.15.2", "torch==2.13.0", "tqdm==4.70.1",
#   "transformers==4.37.2", "typing_extensions==4.16.0", "urllib3==2.8.0", "wcwidth==0.9.4",
#   "wrapt==2.5.2", "zipp==4.1.2",
# ]
# ///
"""FATE's coordinated or SSHE logistic regression: `python run_fate.py INPUT.npz OPTIONS`.

Guest, host and, if there is one, arbiter are processes over FATE's standalone federation, as in its
`examples/launchers`. Both algorithms train on the quadratic that FATE takes for the logistic loss.
PyPI's torch needs CUDA's libraries, which are not named here: take its build for CPUs.
"""

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from fate.arch.dataframe import PandasReader
from fate.arch.launchers.multiprocess_launcher import launch
from fate.ml.glm.hetero.coordinated_lr import (
    CoordinatedLRModuleArbiter,
    CoordinatedLRModuleGuest,
    CoordinatedLRModuleHost,
)
from fate.ml.glm.hetero.sshe import SSHELogisticRegression


def cpu_seconds(process: int) -> float:
    """CPU time of a process and all its descendants."""
    place = Path(f"/proc/{process}")
    fields = place.joinpath("stat").read_text().rpartition(")")[2].split()
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    children = [
        int(child)
        for task in place.joinpath("task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return own + sum(map(cpu_seconds, children))


def frame_of(ctx: Any, data: Any, name: str) -> Any:  # noqa: ANN401
    """A party's rows in the order of their visits, with labels at the guest."""
    rows = data["visits"].ravel()
    table = pd.DataFrame(data[f"{name}_train"][rows]).add_prefix(name)
    table.insert(0, "id", [f"{number:06}" for number in range(len(rows))])
    table.insert(0, "sample", table["id"])
    if name == "label":
        table["y"] = data["y_train"][rows]
    return PandasReader(
        sample_id_name="sample",
        match_id_name="id",
        label_name="y" if name == "label" else None,
        dtype="float64",
    ).to_frame(ctx, table)


def take_part(ctx: Any) -> None:  # noqa: ANN401
    """What each party does; it writes its part of the result."""
    data, options = np.load(os.environ["PEER_INPUT"]), json.loads(os.environ["PEER_OPTIONS"])
    role = "arbiter" if ctx.is_on_arbiter else "guest" if ctx.is_on_guest else "host"
    name = {"guest": "label", "host": "other"}.get(role)
    rate = options["learning_rate"]
    ctx.cipher.set_phe(ctx.device, {"kind": "paillier", "key_length": options["key_bits"]})
    frame = frame_of(ctx, data, name) if name else None
    common: dict[str, Any] = {"epochs": 1, "batch_size": data["visits"].shape[1]}
    zeros = {"method": "zeros", "fit_intercept": role == "guest"}
    stop = {"early_stop": "diff", "tol": 0.0}
    steps = {
        "optimizer_param": {
            "method": "sgd",
            "penalty": None,
            "alpha": 0.0,
            "optimizer_params": {"lr": rate},
        },
        "learning_rate_param": {"method": "constant", "scheduler_params": {"factor": 1.0}},
    }
    wall, cpu = time.perf_counter(), cpu_seconds(os.getpid())
    if options["algorithm"] == "sshe":
        ctx.mpc.init()
        model = SSHELogisticRegression(
            **common,
            **stop,
            learning_rate=rate,
            init_param=zeros,
            reveal_every_epoch=False,
            reveal_loss_freq=1000,
        )
        model.fit(ctx, train_data=frame)
    elif role == "arbiter":
        model = CoordinatedLRModuleArbiter(**common, **stop, **steps)
        model.fit(ctx)
    else:
        kind = CoordinatedLRModuleGuest if role == "guest" else CoordinatedLRModuleHost
        model = kind(**common, **steps, init_param=zeros)
        model.fit(ctx, frame)
    found = {"wall_s": time.perf_counter() - wall, "cpu_s": cpu_seconds(os.getpid()) - cpu}
    if name:
        weights = np.asarray(model.estimator.w.detach()).ravel()
        held_out = data[f"{name}_test"]
        width = held_out.shape[1]
        found["scores"] = (held_out @ weights[:width] + weights[width:].sum()).tolist()
    Path(f"{role}.json").write_text(json.dumps(found))


def main(path: str, options: str) -> dict[str, Any]:
    """Start all parties in the working folder, and add up what they found."""
    os.environ |= {"PEER_INPUT": path, "PEER_OPTIONS": options}
    roles = ["guest", "host"]
    if json.loads(options)["algorithm"] == "coordinated":
        roles.append("arbiter")
    parties = [f"{role}:{9000 + number}" for number, role in enumerate(roles)]
    sys.argv[1:] = ["--parties", *parties, "--log_level", "ERROR", "--data_dir", str(Path.cwd())]
    try:
        launch(take_part)
    except SystemExit as ended:
        if ended.code:
            raise
    found = [json.loads(Path(f"{role}.json").read_text()) for role in roles]
    return {
        "versions": {name: version(name) for name in ("pyfate", "torch")},
        "wall_s": max(each["wall_s"] for each in found),
        "cpu_s": sum(each["cpu_s"] for each in found),
        "bytes": None,
        "scores": np.sum([each["scores"] for each in found[:2]], axis=0).tolist(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], sys.argv[2])) + "\n")
