import json
import os
import subprocess
import sys

import pytest

# It takes 1e-7; parties standardize columns without the weights, and train to a tolerance.
KNOWN = "check_sample_weight_equivalence_on_dense_data"
# One of them takes a SciPy that was told of other arrays before it was imported.
CHECKS = """
import json, sys, warnings
from sklearn.utils.estimator_checks import check_estimator
import securevfl
warnings.simplefilter("ignore")
for name in ("VerticalLogisticRegression", "VerticalRidge"):
    estimator = getattr(securevfl, name)(**json.loads(sys.argv[1]))
    for each in check_estimator(estimator, on_fail=None, on_skip=None):
        print(name, each["check_name"], each["status"], repr(each["exception"]), sep="|")
"""


@pytest.mark.parametrize(
    "parameters", [{}, pytest.param({"exchange": "bfv"}, marks=pytest.mark.slow)]
)
def test_estimators_pass_every_check_of_scikit_learn(parameters: dict[str, object]) -> None:
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-c", CHECKS, json.dumps(parameters)],
        env={**os.environ, "SCIPY_ARRAY_API": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = ended.stdout.splitlines()
    assert len(found) > 90
    others = [each for each in found if "|passed|" not in each and KNOWN not in each]
    assert others == []
