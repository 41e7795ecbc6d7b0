"""What governs the effects of an agent: each concern is a middleware, in a file of its own."""
