"""Algorithms for parties that hold columns of the same rows: the FedBCD family, and FDML."""
