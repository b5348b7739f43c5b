"""The paper's data sets and target models."""
