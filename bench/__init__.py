"""Experiments: what papers promise and what people ask, measured with the package.

A folder is one question. Its `__main__.py` says what is run, its `README.md` shows the tables, and
each run's result file lies beside them. See `bench/README.md`.
"""
