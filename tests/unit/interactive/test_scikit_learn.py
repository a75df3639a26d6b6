"""scikit-learn's own checks of estimators, all of them."""

import json
import os
import subprocess
import sys

import pytest

# One of them takes a SciPy that was told of other arrays before it was imported.
CHECKS = """
import json, sys, warnings
from sklearn.utils.estimator_checks import check_estimator
import securevfl
warnings.simplefilter("ignore")
name, parameters = json.loads(sys.argv[1])
found = check_estimator(getattr(securevfl, name)(**parameters), on_fail=None, on_skip=None)
json.dump([(each["check_name"], each["status"], str(each["exception"])) for each in found],
          sys.stdout)
"""


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("VerticalLogisticRegression", {}),
        pytest.param("VerticalLogisticRegression", {"exchange": "bfv"}, marks=pytest.mark.slow),
    ],
)
def test_estimators_pass_every_check_of_scikit_learn(
    name: str, parameters: dict[str, object]
) -> None:
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-c", CHECKS, json.dumps([name, parameters])],
        env={**os.environ, "SCIPY_ARRAY_API": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ended.stdout)
    assert len(found) > 40
    assert [each for each in found if each[1] != "passed"] == []
