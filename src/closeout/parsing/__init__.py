"""Readers of model text: tolerant JSON, ReAct, XML calls, reasoning marks, tool-call forms, salvage. No I/O."""
