"""Federated transfer learning: labels at one party, predictions for the rows of the other."""
