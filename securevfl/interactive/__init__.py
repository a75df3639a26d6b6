"""What Python users import from `securevfl` itself: estimators, `train` and `audit`."""
