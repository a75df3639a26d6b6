"""The blind exchange: training in shares, in which nobody learns anything but the end."""
