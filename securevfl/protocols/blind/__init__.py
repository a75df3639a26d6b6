"""Training in which parameters stay in shares; who learns what: `description`."""
