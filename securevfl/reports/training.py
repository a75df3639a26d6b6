"""What `securevfl train` says of a job before it starts, for a terminal of 80 columns."""

import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from securevfl.data.tables import VerticalDataset
from securevfl.protocols.plan import Plan
from securevfl.reports.descriptions import learned_in
from securevfl.reports.tables import Column, table

if TYPE_CHECKING:
    from rich.table import Table

WIDTH = 80
MOST_CLASSES, MOST_NAMES = 3, 3
SYMBOLS = {
    r"H_k": "H_k is party k's part of the prediction of a row",
    r"ΣH": "ΣH the sum of all parts",
    r"\bd\b": "d the loss's slope at a row",
    r"G_k": "G_k party k's gradient",
    r"Xᵀ|X_k": "X_k its columns",
    r"\bS\b": "S the rows of a round",
}

Row = dict[str, str | int]
PARTIES: tuple[Column[Row], ...] = (
    ("party", lambda row: str(row["party"])),
    ("columns", lambda row: str(row["columns"])),
    ("rows", lambda row: str(row["rows"])),
    ("in common", lambda row: str(row["common"])),
    ("left out", lambda row: str(row["dropped"])),
)


def parties_table(plan: Plan, dataset: VerticalDataset) -> "Table":
    """Who brings what, and what of it all others hold too."""
    common = len(dataset.train_labels) + len(dataset.test_labels)
    rows: list[Row] = []
    for each in dataset.parties:
        dropped = dataset.dropped.get(each.name, 0)
        labels = " (labels)" if each.name == plan.facts.label_party else ""
        rows.append(
            {
                "party": each.name + labels,
                "columns": len(each.columns),
                "rows": common + dropped,
                "common": common,
                "dropped": dropped,
            }
        )
    return table(PARTIES, rows)


def before(plan: Plan, dataset: VerticalDataset) -> list[str]:
    """What will be done, and what each party will learn of the others, in lines."""
    settings = plan.job.job
    size = "all rows" if plan.full_batches else f"about {plan.batch_size} rows"
    exact = plan.local_steps == "exact"
    steps = "exact local steps" if exact else f"{plan.local_steps} local steps"
    told = [
        f"{plan.facts.rows} rows to train on, {plan.facts.test_rows} held out; {_classes(dataset)}",
        f"{settings.algorithm} under {plan.exchange.name}: at most {plan.rounds} rounds of {size}, "
        f"{steps} in each",
        *_learned(plan),
    ]
    if plan.never_resumes is not None:
        told.append(f"cannot go on once it is interrupted: {plan.never_resumes}")
    return [line for text in told for line in wrapped(text)]


def wrapped(text: str) -> list[str]:
    """A sentence in lines of at most 80 columns, all but the first indented."""
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _classes(dataset: VerticalDataset) -> str:
    codes, counts = np.unique(dataset.train_labels, return_counts=True)
    names = dataset.label_names or tuple(map(str, range(dataset.classes)))
    shares = {names[code]: count / counts.sum() for code, count in zip(codes, counts, strict=True)}
    if len(shares) <= MOST_CLASSES:
        return "classes " + ", ".join(f"{name!r} {share:.1%}" for name, share in shares.items())
    rarest = min(shares, key=shares.__getitem__)
    return f"{len(shares)} classes, the rarest {rarest!r} {shares[rarest]:.1%}"


def _learned(plan: Plan) -> Iterator[str]:
    """A line for each role, and what its letters mean."""
    label = plan.facts.label_party
    others = [name for name in plan.facts.names if name != label]
    features = ", ".join(others[:MOST_NAMES])
    if len(others) > MOST_NAMES:
        features += f" and {len(others) - MOST_NAMES} more"
    names = {"label party": label, "feature party": features}
    texts = []
    for role, learns in learned_in(plan):
        verb = "each learns" if names.get(role) == features and len(others) > 1 else "learns"
        texts.append(f"{names.get(role, role)} {verb}: {learns}")
    yield from texts
    said = " ".join(texts)
    meanings = [text for pattern, text in SYMBOLS.items() if re.search(pattern, said)]
    if meanings:
        yield f"({'; '.join(meanings)})"
