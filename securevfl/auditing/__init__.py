"""Who sees what in recorded runs, measuring attacks on it, and judging what they found."""
