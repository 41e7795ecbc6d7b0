from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset

agent = Agent("openai-chat:gpt-5", toolsets=[MCPToolset("shop_server.py")])
print(agent.run_sync("What does a lamp cost?").output)
