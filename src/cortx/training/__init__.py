"""Learning the explainer: an encoder without labels, heads with few."""
