"""Laws of growth: sums of terms, fitted to the measured rows, and what they say on paper."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy.optimize import nnls

from bench.documents import Cells
from securevfl.arrays import FloatArray
from securevfl.reports.tables import Row, seconds, size

Shape = tuple[float, float, float]
"""N rows, P columns of each party, K parties."""


def copies(rows: float, columns: float) -> float:
    """s: an encrypted vector is cut into pieces of 8,192/s rows, and a reply has s columns.

    A row costs s words up and a column 8,192/s words down, so the least is where both are equal.
    """
    return max(1.0, math.sqrt(8192 * columns / rows))


TERMS: Mapping[str, Callable[[float, float, float], float]] = {
    "1": lambda n, p, k: 1,
    "K": lambda n, p, k: k,
    "N": lambda n, p, k: n,
    "N·K": lambda n, p, k: n * k,
    "N·P": lambda n, p, k: n * p,
    "N·P·K": lambda n, p, k: n * p * k,
    "N·P²·K": lambda n, p, k: n * p**2 * k,
    "P³·K": lambda n, p, k: p**3 * k,
    "(K − 1)": lambda n, p, k: k - 1,
    "N·(K − 1)": lambda n, p, k: n * (k - 1),
    "s·N·(K − 1)": lambda n, p, k: copies(n, p) * n * (k - 1),
    "P/s·(K − 1)": lambda n, p, k: p / copies(n, p) * (k - 1),
    "N·P·(K − 1)": lambda n, p, k: n * p * (k - 1),
}
CLEAR = ("K", "N·K", "N·P·K")
MEMORY = ("1", "N", "N·P")
LAWS: Mapping[tuple[str, str], Sequence[str]] = {
    ("plain", "setup_cpu_s"): ("K", "N·K", "N·P·K", "N·P²·K"),
    ("plain", "round_cpu_s"): CLEAR,
    ("plain", "round_bytes"): ("(K − 1)", "N·(K − 1)"),
    ("plain", "memory_bytes"): MEMORY,
    ("bfv", "setup_cpu_s"): ("K", "N·K", "N·P·K", "N·P²·K"),
    ("bfv", "round_cpu_s"): ("K", "N·K", "N·P·K", "s·N·(K − 1)", "P/s·(K − 1)"),
    ("bfv", "round_bytes"): ("N·(K − 1)", "s·N·(K − 1)", "P/s·(K − 1)"),
    ("bfv", "memory_bytes"): (*MEMORY, "(K − 1)", "s·N·(K − 1)", "P/s·(K − 1)"),
    ("blind", "setup_cpu_s"): ("K", "N·K", "N·P·K", "N·P²·K"),
    ("blind", "round_cpu_s"): ("1", "N", "(K − 1)", "N·(K − 1)", "N·P·(K − 1)"),
    ("blind", "round_bytes"): ("N", "N·(K − 1)", "s·N·(K − 1)", "P/s·(K − 1)"),
    ("blind", "memory_bytes"): (*MEMORY, "(K − 1)", "N·(K − 1)"),
}
FIGURES = {
    "setup_cpu_s": "set-up, CPU",
    "round_cpu_s": "a round, CPU",
    "round_bytes": "a round sends",
    "memory_bytes": "memory",
}
ROUNDS = 5
LONG, PAPER = (1e7, 10, 2), (1e9, 100, 2)
MACHINES, CORES, LINE, CORE_BYTES = 50, 32, 10e9 / 8, 10e9
"""Of each party; bytes a second each way between them, and from memory to a core."""


def small(value: float) -> str:
    """Seconds, down to picoseconds."""
    unit, factor = ("ps", 1e12) if value < 1e-9 else ("ns", 1e9)  # noqa: PLR2004
    return seconds(value) if value >= 1e-6 else f"{value * factor:.3g} {unit}"  # noqa: PLR2004


def hours(value: float) -> str:
    """CPU hours."""
    return f"{value / 3600:.3g} h"


def values(terms: Sequence[str], shapes: Sequence[Shape]) -> FloatArray:
    """Each term of each shape, shape (shapes, terms)."""
    return np.array([[TERMS[term](*shape) for term in terms] for shape in shapes], np.float64)


def fitted(rows: Sequence[Row], exchange: str, figure: str) -> tuple[FloatArray, float]:
    """Factors of a law's terms, none negative, by relative errors; and the largest of these."""
    found = [
        row
        for row in rows
        if row["exchange"] == exchange and not row["forecast"] and row["rounds"] == ROUNDS
    ]
    measured = np.array([row[figure] for row in found])
    shapes = [(row["rows"], row["columns"], row["parties"]) for row in found]
    relative = values(LAWS[exchange, figure], shapes) / measured[:, None]
    scales = relative.max(axis=0)  # nnls compares factors with one tolerance
    factors = nnls(relative / scales, np.ones(len(found)))[0] / scales
    return factors, float(np.abs(relative @ factors - 1).max())


def law(rows: Sequence[Row], exchange: str, figure: str, shape: Shape) -> float:
    """What a law says about a shape."""
    terms = LAWS[exchange, figure]
    return float(values(terms, [shape])[0] @ fitted(rows, exchange, figure)[0])


def laws(rows: Sequence[Row]) -> Cells:
    """A line for each law."""
    table = [["exchange", "figure", "law", "largest deviation", "10⁷ x (10 + 10)"]]
    for (exchange, figure), terms in LAWS.items():
        factors, deviation = fitted(rows, exchange, figure)
        text = size if figure.endswith("bytes") else small
        formula = " + ".join(
            text(factor) if term == "1" else f"{text(factor)} · {term}"
            for term, factor in zip(terms, factors, strict=True)
            if factor
        )
        long = text(law(rows, exchange, figure, LONG))
        table.append([exchange, FIGURES[figure], formula, f"{100 * deviation:.0f}%", long])
    return table


def on_paper(rows: Sequence[Row]) -> Cells:
    """A line for each exchange: 10⁹ rows on 100 machines, beside what the hardware allows.

    Parties take turns, as messages do; a party's cores and machines share its work without loss.
    """
    (n, p, k), cores = PAPER, MACHINES * CORES
    # A round reads each column twice, for predictions and for the step.
    reading = 2 * 4 * n * p * k / (cores * CORE_BYTES)
    in_clear = law(rows, "plain", "round_bytes", PAPER)
    table = [
        [
            "exchange",
            "set-up, CPU",
            "a round, CPU",
            "on all cores",
            "to reading the tables",
            "a round sends",
            "to plain",
            "on the line",
            "memory of a machine",
        ]
    ]
    for exchange in dict.fromkeys(row["exchange"] for row in rows):
        of = {figure: law(rows, exchange, figure, PAPER) for figure in FIGURES}
        table.append(
            [
                exchange,
                hours(of["setup_cpu_s"]),
                hours(of["round_cpu_s"]),
                seconds(of["round_cpu_s"] / cores),
                f"{of['round_cpu_s'] / cores / reading:.3g}x",
                size(of["round_bytes"]),
                f"{of['round_bytes'] / in_clear:.3g}x",
                seconds(of["round_bytes"] / LINE),
                size(of["memory_bytes"] / MACHINES),
            ]
        )
    return table
