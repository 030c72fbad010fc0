"""Small tools that know nothing of pruning: files, images, colours, statistics, tables."""
