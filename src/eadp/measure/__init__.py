"""What it costs: multiply-adds from a configuration alone."""
