"""Modules that are slow to import, loaded when something of them is first used."""

from importlib import import_module


class Lazy:
    """Stands for a module: `pl = Lazy("polars")`, beside the import that a type checker sees."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        """What the module has."""
        return getattr(import_module(self._name), attribute)
