"""Messages as bytes, whatever protocol they belong to."""
