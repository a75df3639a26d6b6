"""Vertical federated learning with the exchanges protected."""

__version__ = "0.1.0"
