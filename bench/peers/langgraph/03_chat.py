from langchain.agents import create_agent
from langgraph.checkpoint.sqlite import SqliteSaver

with SqliteSaver.from_conn_string("chat.db") as saver:
    agent = create_agent("openai:gpt-5", checkpointer=saver)
    while question := input("> "):
        thread = {"configurable": {"thread_id": "anna"}}
        state = agent.invoke({"messages": [("user", question)]}, thread)
        print(state["messages"][-1].content)
