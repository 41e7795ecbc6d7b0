"""One loop: an agent from its task to its answer, live and repeated from a record."""
