"""The blind exchange: parameters, predictions and residuals in shares until the end."""
