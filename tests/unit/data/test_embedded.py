import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits

from securevfl.data import embedded


def test_breast_cancer_is_what_scikit_learn_loads() -> None:
    values, labels = embedded.breast_cancer()
    bunch = load_breast_cancer()
    assert np.array_equal(values, bunch.data)
    assert np.array_equal(labels, bunch.target)
    assert list(embedded.BREAST_CANCER_COLUMNS) == bunch.feature_names.tolist()
    assert list(embedded.BREAST_CANCER_LABELS) == bunch.target_names.tolist()


def test_digits_are_what_scikit_learn_loads() -> None:
    values, labels = embedded.digits()
    bunch = load_digits()
    assert np.array_equal(values, bunch.data)
    assert np.array_equal(labels, bunch.target)
