"""How tool results are shown to a model: normal values, encodings, budgets, stored artefacts, telemetry. No I/O."""
