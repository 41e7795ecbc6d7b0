"""The command line: every command, its options, and what it prints."""
