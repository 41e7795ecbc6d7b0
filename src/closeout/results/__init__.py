"""Tool results as a model sees them: normal values, encodings, budgets, stored artefacts, telemetry. No I/O."""
