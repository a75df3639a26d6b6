"""What does the simulation cost a round? `python bench/simulation_overhead.py [FILE.json]`."""

import sys
from pathlib import Path

from securevfl.benchmarks.overhead import overhead
from securevfl.reports.results import write_results

row = overhead()
print(
    f"K = {row['parties']}, S = {row['samples']}, P = {row['features']}, plain, {row['rounds']} "
    f"rounds x {row['repeats']}, medians a round: {row['wall_s_per_round'] * 1e3:.3f} ms in all, "
    f"{row['compute_s_per_round'] * 1e3:.3f} ms of them the parties' own computation, "
    f"{row['overhead_s_per_round'] * 1e3:.3f} ms simulation"
)
if len(sys.argv) > 1:
    path = Path(sys.argv[1])
    write_results(path, command="bench/simulation_overhead.py", seed=0, settings={}, rows=[row])
