# /// script
# dependencies = ["langgraph==1.2.22", "langchain==1.4.7", "langchain-openai==1.7.3"]
# ///
"""LangGraph's agent, as `create_agent` makes it."""

from bridge import API_KEY, BASE_URL, INSTRUCTIONS, MAX_REQUESTS, MAX_TOKENS, MODEL, TOOLS, answer_questions
from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model=MODEL, base_url=BASE_URL, api_key=API_KEY, temperature=0, max_tokens=MAX_TOKENS)
limit = ModelCallLimitMiddleware(run_limit=MAX_REQUESTS, exit_behavior="error")
agent = create_agent(model, TOOLS, system_prompt=INSTRUCTIONS, middleware=[limit])


def ask(question: str) -> str:
    state = agent.invoke({"messages": [("user", question)]}, {"recursion_limit": 100})
    return state["messages"][-1].text


answer_questions(ask, "langgraph")
