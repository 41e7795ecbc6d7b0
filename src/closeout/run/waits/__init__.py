"""What a run waits for: decisions, timers, signals, logins, the questions of servers."""
