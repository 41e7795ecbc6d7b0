"""From arguments and settings to the plan of a run: arguments checked, tools and sub-agents made, files read."""
