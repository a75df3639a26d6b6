"""What every protocol has in common: agreeing on a job, keys, secure sums, scoring."""
