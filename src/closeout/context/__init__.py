"""What the model sees of a run: the history view, eviction, compaction, token accounting."""
