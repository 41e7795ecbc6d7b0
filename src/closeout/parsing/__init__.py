"""How model text is read: tolerant JSON, ReAct, XML calls, reasoning marks, tool-call forms, salvage. No I/O."""
