"""What a tool is, where it comes from, and the governed steps of a call: plan, run, judge."""
