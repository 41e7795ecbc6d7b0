"""Three services over one HTTP application: agents, a governing proxy for model endpoints, the viewer of runs."""
