# /// script
# requires-python = "==3.11.*"
# dependencies = [
#   "secretflow-lite==1.11.0b1", "spu==0.9.3b0", "sf_heu==0.5.2b0", "secretflow-dataproxy==0.3.0b0",
#   "secretflow-serving-lib==0.8.0b0", "kuscia==0.0.3b0", "jax==0.4.26", "jaxlib==0.4.26",
#   "numpy==1.23.5", "pandas==1.5.3", "pyarrow==14.0.2", "scikit-learn==1.3.2", "scipy==1.15.3",
#   "ml_dtypes==0.5.4", "opt_einsum==3.4.0", "cachetools==8.0.2", "cloudpickle==3.1.3",
#   "dill==0.4.1", "multiprocess==0.70.19", "joblib==1.6.0", "threadpoolctl==3.8.0",
#   "protobuf==4.25.9", "grpcio==1.56.2", "duckdb==1.0.0", "sqlglot==25.5.1", "s3fs==2024.2.0",
#   "fsspec==2024.2.0", "aiobotocore==2.26.0", "botocore==1.41.5", "jmespath==1.1.0",
#   "aiohttp==3.14.5", "aiohappyeyeballs==2.7.1", "aioitertools==0.13.0", "aiosignal==1.4.0",
#   "attrs==26.1.0", "frozenlist==1.8.0", "multidict==6.9.1", "propcache==0.5.4", "yarl==1.25.1",
#   "wrapt==1.17.3", "python-dateutil==2.9.0.post0", "pytz==2026.6", "six==1.17.0",
#   "termcolor==3.3.0", "typing_extensions==4.12.2", "requests==2.32.3", "urllib3==2.8.0",
#   "idna==3.20", "certifi==2026.10.19.post1", "charset-normalizer==3.5.3",
# ]
# ///
"""SecretFlow's `fl_lr_v` on the prepared rows: `python run_secretflow.py INPUT.npz OPTIONS`.

`secretflow-lite` has a debug mode, in one process, and a production mode between machines. This is
the debug mode, in which ciphertexts are real and nothing is serialized. The version is the last
whose parts exist for Python 3.11, but for `sdc-sdk`, which only TEEs use and is left out.
"""

import json
import os
import sys
import time
from importlib.metadata import version
from typing import Any

import numpy as np
import secretflow as sf
import spu
from secretflow.data.ndarray import FedNdarray, PartitionWay
from secretflow.ml.linear.fl_lr_v import FlLogisticRegressionVertical
from secretflow.security.aggregation.plain_aggregator import PlainAggregator


def main(path: str, options: dict[str, Any]) -> dict[str, Any]:
    """Train under a scheme of HEU; generating the key is counted, starting is not.

    Rows lie in the order of their visits, so that an epoch without shuffling makes all batches.
    """
    data = np.load(path)
    visits = data["visits"]
    rows = visits.ravel()
    start = time.perf_counter()
    sf.init(["label", "other"], debug_mode=True)
    label, other = sf.PYU("label"), sf.PYU("other")

    def held(party: Any, values: Any) -> Any:  # noqa: ANN401
        return party(lambda: values)()

    x = FedNdarray(
        {
            label: held(label, data["label_train"][rows]),
            other: held(other, data["other_train"][rows]),
        },
        PartitionWay.VERTICAL,
    )
    y = FedNdarray({label: held(label, data["y_train"][rows].astype(float))}, PartitionWay.VERTICAL)
    wall, cpu = time.perf_counter(), time.process_time()
    start = wall - start
    heu = sf.HEU(
        {
            "sk_keeper": {"party": "label"},
            "evaluators": [{"party": "other"}],
            "mode": "PHEU",
            "he_parameters": {
                "schema": options["schema"],
                "key_pair": {"generate": {"bit_size": options["key_bits"]}},
            },
        },
        spu.FieldType.FM64,
    )
    model = FlLogisticRegressionVertical([label, other], PlainAggregator(label), heu)
    model.fit(
        x,
        y,
        batch_size=visits.shape[1],
        epochs=1,
        tol=0.0,
        learning_rate=options["learning_rate"],
    )
    weights = {party.party: sf.reveal(each).ravel() for party, each in model.get_weight().items()}
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    intercept, *own = weights["label"]
    scores = data["label_test"] @ own + data["other_test"] @ weights["other"] + intercept
    return {
        "versions": {name: version(name) for name in ("secretflow-lite", "sf_heu")},
        "start_s": start,
        "wall_s": wall,
        "cpu_s": cpu,
        "bytes": None,
        "scores": scores.tolist(),
    }


if __name__ == "__main__":
    found = main(sys.argv[1], json.loads(sys.argv[2]))
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # its threads do not end
