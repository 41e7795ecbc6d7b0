"""How a conversation is written for a model, and what its reply must match. No I/O."""
