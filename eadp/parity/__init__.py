"""Parity: each method beside the implementation that its authors released, on the same tensors."""
