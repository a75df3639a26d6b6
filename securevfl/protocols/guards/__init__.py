"""Guards: what a job would tell, counted with what earlier ones told, before it starts."""
