from pydantic import BaseModel

from closeout import Agent


class City(BaseModel):
    name: str
    inhabitants: int


agent = Agent("openai:gpt-5", answer=City)
city = agent.run_sync("Which city in Switzerland has the most inhabitants?").value
print(city.name, city.inhabitants)
