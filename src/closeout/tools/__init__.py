"""Tools, the places they come from, and the governed steps of a call: plan, run, judge."""
