"""Theorem 2 and the optimum in Q: `python bench/theorem2.py [FILE.json]`; a9a has to be there."""

import sys
from pathlib import Path
from typing import Any

from securevfl.benchmarks.rounds import RoundsSettings
from securevfl.benchmarks.rounds import rounds as run_rounds
from securevfl.benchmarks.theorem2 import bounded_gradients, rates, slope, with_drift
from securevfl.data.sources import load
from securevfl.data.tables import some_rows
from securevfl.reports.results import write_results

rows: list[dict[str, Any]] = []
print("breast_cancer, T = 400 local steps, means of 3 seeds: average of |grad L|^2 over T")
print("  Q    S  eta/largest   measured      bound  bound / measured")
for row in bounded_gradients(load("breast_cancer")):
    rows.append({"table": "bound", **row})
    print(
        f"{row['local_steps']:3} {row['batch_size']:4} {row['over_limit']:12g} "
        f"{row['measured']:10.4g} {row['bound']:10.4g} {row['bound'] / row['measured']:10.1f}"
        f"{'' if row['holds'] else '  does not hold'}",
        flush=True,
    )
print("\na9a, 4096 rows, features scaled: eta = 1/sqrt(T), S = Q = sqrt(T), means of 3 seeds")
print("rounds      T   measured      bound")
found = list(rates(with_drift(some_rows(load("a9a"), 4096))))
for row in found:
    rows.append({"table": "rate", **row})
    print(f"{row['rounds']:6} {row['steps']:6} {row['measured']:10.4g} {row['bound']:10.4g}")
print(f"log error over log rounds has slope {slope(found):.2f}; the theorem's rate is -1")

print("\na9a, S = 64, eta0 = 0.3, to AUC 0.897: rounds by Q, medians of 3 seeds (* not reached)")
settings = RoundsSettings(
    algorithms=("fedbcd-p",),
    local_steps=(1, 5, 15, 25, 50, 100),
    proximal=(0.0, 0.1),
    batch_size=64,
    target_auc=0.897,
    max_rounds=300,
    learning_rate=0.3,
    eval_every=5,
)
for row in run_rounds(settings, {2: load("a9a")}):
    rows.append({"table": "optimum", **row})
    print(
        f"Q = {row['local_steps']:3}  mu = {row['proximal']:g}  rounds {row['rounds']:g}"
        f"{'' if row['reached_target'] else ' *'}  best AUC {row['best_auc']:.4f}",
        flush=True,
    )
if len(sys.argv) > 1:
    write_results(Path(sys.argv[1]), command="bench/theorem2.py", seed=0, settings={}, rows=rows)
