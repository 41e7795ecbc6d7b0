import asyncio

from agents import Agent, Runner
from agents.mcp import MCPServerStdio


async def main():
    async with MCPServerStdio(params={"command": "python", "args": ["shop_server.py"]}) as shop:
        agent = Agent(name="shop", model="gpt-5", mcp_servers=[shop])
        print((await Runner.run(agent, "What does a lamp cost?")).final_output)


asyncio.run(main())
