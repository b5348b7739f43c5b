"""Scripts behind every figure we report."""
