"""Ways to write a conversation for a model, and the form that its reply must match. No I/O."""
