"""What the audit measures, one module for each thing that is attacked."""
