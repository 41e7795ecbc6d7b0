import json

from pydantic import BaseModel
from smolagents import OpenAIModel, ToolCallingAgent


class City(BaseModel):
    name: str
    inhabitants: int


def is_a_city(answer, memory, agent):
    return City.model_validate_json(answer)


form = f"The final answer is JSON with this schema: {json.dumps(City.model_json_schema())}"
agent = ToolCallingAgent(tools=[], model=OpenAIModel("gpt-5"), instructions=form, final_answer_checks=[is_a_city])
answer = agent.run("Which city in Switzerland has the most inhabitants?")
city = City.model_validate_json(answer)
print(city.name, city.inhabitants)
