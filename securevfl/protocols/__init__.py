"""Algorithms of the FedBCD family and the exchanges that protect their rounds."""
