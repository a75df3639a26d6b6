"""Does a round's encryption cost grow with local steps? `python bench/cost_law.py [FILE.json]`."""

import sys
from pathlib import Path

from securevfl.benchmarks.cost_law import cost_law
from securevfl.data.sources import load
from securevfl.reports.results import write_results

rows = list(cost_law(load("breast_cancer")))
for row in rows:
    name = f"{row['scheme']}-{row['key_bits']}" if row["key_bits"] else row["scheme"]
    print(
        f"{name:14} Q = {row['local_steps']:3}  "
        f"homomorphic {row['homomorphic_s_per_round'] * 1e3:8.2f} ms a round "
        f"({row['ratio_to_first']:.2f} x Q = 1)  "
        f"local {row['local_s_per_round'] * 1e3:6.2f} ms  "
        f"{row['encryptions_per_round']:.0f} encryptions, {row['products_per_round']:.0f} "
        f"products, {row['decryptions_per_round']:.0f} decryptions"
    )
if len(sys.argv) > 1:
    write_results(Path(sys.argv[1]), command="bench/cost_law.py", seed=0, settings={}, rows=rows)
