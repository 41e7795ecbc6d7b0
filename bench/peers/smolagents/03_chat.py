import pickle
from pathlib import Path

from smolagents import OpenAIModel, ToolCallingAgent

agent = ToolCallingAgent(tools=[], model=OpenAIModel("gpt-5"))
file = Path("anna.pickle")
if file.exists():
    agent.memory.steps = pickle.loads(file.read_bytes())
while question := input("> "):
    print(agent.run(question, reset=False))
    file.write_bytes(pickle.dumps(agent.memory.steps))
