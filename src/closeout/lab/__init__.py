"""Recorded runs as material for experiments: forks, differences, what-if comparisons, checks of a new version."""
