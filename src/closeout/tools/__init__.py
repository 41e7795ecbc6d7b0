"""Tools, their sources, and the governed steps of a call: plan, run, judge."""
