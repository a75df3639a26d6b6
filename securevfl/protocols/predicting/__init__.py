"""Scoring new rows with a trained model: each party with its own part, as in a round."""
