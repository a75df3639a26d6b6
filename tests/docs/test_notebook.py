"""The notebook's cells run in their order, as a reader would run them."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first-hour.ipynb"


@pytest.mark.slow
@pytest.mark.usefixtures("clean_place")
def test_the_notebook_runs_from_its_first_cell_to_its_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert not cell["outputs"]
        body = ast.parse("".join(cell["source"]))
        last = body.body.pop() if isinstance(body.body[-1], ast.Expr) else None
        exec(compile(body, cell["id"], "exec"), names)  # noqa: S102
        if not isinstance(last, ast.Expr):
            continue
        value = eval(compile(ast.Expression(last.value), cell["id"], "eval"), names)  # noqa: S307
        if value is not None:
            shown.append(value._repr_html_())
    result, weighted = names["result"], names["weighted"]
    # What the text says of them.
    assert result.ranking["auc_gain_interval"][0] > 0
    assert weighted.scores[-1].auc == pytest.approx(result.scores[-1].auc, abs=0.02)
    assert weighted.calibration.brier > result.calibration.brier
    job, cutoffs = shown
    assert "fedbcd-p under bfv" in job
    assert "lowest cost at 1 : 10" in cutoffs
    printed = capsys.readouterr().out
    for line in (
        "did not pay",
        "AUC 0.",
        "average precision 0.",
        "above the bank alone by 0.",
        "balanced:",
    ):
        assert line in printed
