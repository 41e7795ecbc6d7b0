"""The model that runs in this process: its weights, its engine, and what the machine can do."""
