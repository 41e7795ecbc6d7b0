from langchain.agents import create_agent
from pydantic import BaseModel


class City(BaseModel):
    name: str
    inhabitants: int


agent = create_agent("openai:gpt-5", response_format=City)
question = "Which city in Switzerland has the most inhabitants?"
city = agent.invoke({"messages": [("user", question)]})["structured_response"]
print(city.name, city.inhabitants)
