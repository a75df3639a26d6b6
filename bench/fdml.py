"""FDML's Table 2 on a9a, beside one place and one party alone: `python bench/fdml.py`."""

from dataclasses import replace

from rich.console import Console

from securevfl.benchmarks.fdml import FdmlSettings, fdml
from securevfl.data.sources import load
from securevfl.reports.tables import FDML, table

data = load("a9a")
# 67 columns and 56 with the constant one, as in the paper.
data = replace(data, label_party=data.parties[1].name)
rows = [
    *fdml(FdmlSettings("lr", learning_rate=3.0), data),
    *fdml(FdmlSettings("nn", learning_rate=6.0, l2=1e-4), data),
]
Console().print(table(FDML, rows, "a9a, S = 100, 20 epochs, lan; medians of 3 seeds"))
