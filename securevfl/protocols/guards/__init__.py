"""Guards: refuse a job that, with earlier jobs, would reveal too much of labels or rows."""
