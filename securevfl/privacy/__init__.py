"""Differential privacy: noise on what is shared, and what it promises."""
