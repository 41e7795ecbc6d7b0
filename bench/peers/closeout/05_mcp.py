from closeout import Agent

agent = Agent("openai:gpt-5", mcp_servers=["python shop_server.py"])
print(agent.run_sync("What does a lamp cost?").answer)
