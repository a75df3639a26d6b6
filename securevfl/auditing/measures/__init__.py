"""The attacks of the audit: each describes itself where it is measured, a family a file."""
