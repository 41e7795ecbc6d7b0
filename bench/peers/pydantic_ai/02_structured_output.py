from pydantic import BaseModel
from pydantic_ai import Agent


class City(BaseModel):
    name: str
    inhabitants: int


agent = Agent("openai-chat:gpt-5", output_type=City)
city = agent.run_sync("Which city in Switzerland has the most inhabitants?").output
print(city.name, city.inhabitants)
