"""Channels between parties, the simulated network, cost ledgers and recorded views."""
