"""What scikit-learn reaches on the columns of all parties in one place."""

import numpy as np
from sklearn.linear_model import LogisticRegression

from securevfl.arrays import FloatArray
from securevfl.benchmarks.tradeoff import ScoreName
from securevfl.data.scaling import Scaling
from securevfl.data.tables import PartyTable, VerticalDataset
from securevfl.models.scores import accuracy, auc

MOST_ITERATIONS = 10_000


def score_in_one_place(dataset: VerticalDataset, c: float = 1.0) -> tuple[ScoreName, float]:
    """How good scikit-learn's LogisticRegression is on the held-out rows, by default or with a C.

    Returns:
        What the score is, AUC of two classes or accuracy of more, and the score.
    """

    def scaled(table: PartyTable) -> tuple[FloatArray, FloatArray]:
        if not dataset.standardize:
            return table.train, table.test
        scaling = Scaling.fit(table.train, table.name, table.columns)
        return scaling.apply(table.train), scaling.apply(table.test)

    train_rows, test_rows = map(
        np.hstack, zip(*(scaled(table) for table in dataset.parties), strict=True)
    )
    model = LogisticRegression(C=c, max_iter=MOST_ITERATIONS).fit(train_rows, dataset.train_labels)
    predictions = model.decision_function(test_rows).reshape(len(test_rows), -1)
    if dataset.classes == 2:  # noqa: PLR2004
        return "auc", auc(predictions, dataset.test_labels)
    return "accuracy", accuracy(predictions, dataset.test_labels)
