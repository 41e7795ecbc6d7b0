"""Events of runs, the store that keeps them, their repetition on resume, and the views of a record."""
