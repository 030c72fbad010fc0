"""Accuracy with and without pruning: benchmarks, sweeps, comparisons and adapters for evaluation harnesses."""
