"""What all protocols share: agreement on a job, keys, secure aggregation, scoring, checkpoints."""
