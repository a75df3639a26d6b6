"""How predictions and residuals travel in a round, one exchange a file."""
