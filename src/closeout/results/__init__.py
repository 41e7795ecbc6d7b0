"""Tool results for a model: normal values, encodings, budgets, stored artefacts, telemetry. No I/O."""
