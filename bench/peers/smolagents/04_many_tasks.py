import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from smolagents import OpenAIModel, ToolCallingAgent

tasks = [f"What is {number} squared?" for number in range(200)]
record = Path("done.jsonl")
record.touch()
answers = dict(json.loads(line) for line in record.read_text().splitlines())
model = OpenAIModel("gpt-5")


def run(task):
    answers[task] = ToolCallingAgent(tools=[], model=model, verbosity_level=0).run(task)
    with record.open("a") as file:
        print(json.dumps([task, answers[task]]), file=file)


with ThreadPoolExecutor(20) as pool:
    list(pool.map(run, [task for task in tasks if task not in answers]))
print(len(answers), answers[tasks[12]])
