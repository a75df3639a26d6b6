"""Modules that are slow to import, loaded on first use."""

from importlib import import_module


class Lazy:
    """A placeholder for a module: `pl = Lazy("polars")`, beside the import for type checkers."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        """An attribute of the module."""
        return getattr(import_module(self._name), attribute)
