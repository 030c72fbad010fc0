"""Does it still answer right? Benchmarks with every method and budget side by side."""
