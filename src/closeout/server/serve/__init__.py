"""An agent behind OpenAI's and Anthropic's APIs, the API of runs, and MCP."""
