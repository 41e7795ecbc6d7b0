"""The model's view of a run: history, eviction, compaction, token accounting."""
