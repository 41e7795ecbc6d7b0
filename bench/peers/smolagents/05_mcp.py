from mcp import StdioServerParameters
from smolagents import MCPClient, OpenAIModel, ToolCallingAgent

server = StdioServerParameters(command="python", args=["shop_server.py"])
with MCPClient(server) as tools:
    agent = ToolCallingAgent(tools=tools, model=OpenAIModel("gpt-5"))
    print(agent.run("What does a lamp cost?"))
