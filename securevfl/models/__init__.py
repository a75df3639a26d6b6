"""Local models and losses."""
