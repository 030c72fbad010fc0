"""Helpers that are independent of pruning: files, images, colours, statistics, tables."""
