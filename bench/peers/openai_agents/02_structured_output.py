from agents import Agent, Runner
from pydantic import BaseModel


class City(BaseModel):
    name: str
    inhabitants: int


agent = Agent(name="cities", model="gpt-5", output_type=City)
city = Runner.run_sync(agent, "Which city in Switzerland has the most inhabitants?").final_output
print(city.name, city.inhabitants)
