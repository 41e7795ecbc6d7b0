import asyncio

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient


async def main():
    server = {"transport": "stdio", "command": "python", "args": ["shop_server.py"]}
    tools = await MultiServerMCPClient({"shop": server}).get_tools()
    agent = create_agent("openai:gpt-5", tools=tools)
    state = await agent.ainvoke({"messages": [("user", "What does a lamp cost?")]})
    print(state["messages"][-1].content)


asyncio.run(main())
