"""Many runs at once: batches under a key, workers that share a home, runs that are due, the data of a person."""
