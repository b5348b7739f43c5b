"""The finished product: fit, explain, save, load."""
