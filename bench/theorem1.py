"""Are X and XU the same to everyone else? `python bench/theorem1.py [DATASET [FILE.json]]`."""

import sys
from pathlib import Path

from securevfl.benchmarks.theorem1 import theorem1
from securevfl.data.sources import load
from securevfl.reports.results import write_results

dataset = load(sys.argv[1] if len(sys.argv) > 1 else "breast_cancer")
rows = []
for row in theorem1(dataset):
    rows.append(row)
    print(
        f"{row['case']:26} {row['expected']:6}  deviation {row['deviation']:.1e}  "
        f"distance {row['relative_distance']:.2f}  "
        f"UtU - I {row['orthogonality_error']:.0e}  dim O(n) {row['group_dimension']}",
        flush=True,
    )
if len(sys.argv) > 2:  # noqa: PLR2004
    write_results(
        Path(sys.argv[2]), command="bench/theorem1.py", seed=0, settings={"rounds": 1000}, rows=rows
    )
