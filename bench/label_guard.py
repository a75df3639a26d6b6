"""What the label guard lets through: `python bench/label_guard.py DATASET [LABEL_PARTY]`."""

import sys
from dataclasses import replace

from securevfl.benchmarks.label_guard import label_guard
from securevfl.data.sources import load

dataset = load(sys.argv[1])
if len(sys.argv) > 2:  # noqa: PLR2004
    dataset = replace(dataset, label_party=sys.argv[2])
print(f"{dataset.name}, labels at {dataset.label_party}")
print("ratio      S   accuracy   own model  more   rank/N  rows of leverage 1")
for row in label_guard(dataset):
    print(
        f"{row['ratio']:.3f} {row['batch_size']:6} {row['accuracy']:.4f} +- "
        f"{row['accuracy_std']:.4f} {row['own_model']:.4f} "
        f"{row['accuracy'] - row['own_model']:+.4f} {row['rank_share']:.3f} "
        f"{row['exposed_rows']:6}",
        flush=True,
    )
