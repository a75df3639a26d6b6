"""Attacks on what a party saw, one a file; each declares what else it is given."""
