"""Labels and explanations of tables that are too large for one process: on all cores, on Ray, on Spark."""
