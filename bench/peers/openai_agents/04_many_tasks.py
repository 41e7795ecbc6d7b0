import asyncio
import json
from pathlib import Path

from agents import Agent, Runner

agent = Agent(name="squares", model="gpt-5")
tasks = [f"What is {number} squared?" for number in range(200)]
record = Path("done.jsonl")
record.touch()
answers = dict(json.loads(line) for line in record.read_text().splitlines())
places = asyncio.Semaphore(20)


async def run(task):
    async with places:
        answers[task] = (await Runner.run(agent, task)).final_output
    with record.open("a") as file:
        print(json.dumps([task, answers[task]]), file=file)


async def main():
    await asyncio.gather(*[run(task) for task in tasks if task not in answers])


asyncio.run(main())
print(len(answers), answers[tasks[12]])
