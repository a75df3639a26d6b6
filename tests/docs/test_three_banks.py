"""The example in examples/three-banks runs."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.docs.examples import environment
from tests.end_to_end.commands import LONG
from tests.link_parties import free_address

SCRIPT = Path(__file__).parents[2] / "examples" / "three-banks" / "run.sh"


@pytest.mark.slow
@pytest.mark.usefixtures("clean_place")
def test_three_banks_train_over_a_relay() -> None:
    port = free_address().split(":")[1]
    done = subprocess.run(  # noqa: S603
        [SCRIPT, "banks"],
        env={**os.environ, **environment(), "PORT": port},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = {
        name: json.loads(Path(f"banks/{name}/models/result.json").read_text(encoding="utf-8"))
        for name in ("north", "south", "west")
    }
    assert results["north"]["scores"]["auc"] > 0.75
    assert results["south"]["scores"] is results["west"]["scores"] is None
    assert len({json.dumps(each["rows_in_common"]) for each in results.values()}) == 1
