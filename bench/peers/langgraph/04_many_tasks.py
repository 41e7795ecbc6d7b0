import asyncio
import json
from pathlib import Path

from langchain.agents import create_agent

agent = create_agent("openai:gpt-5")
tasks = [f"What is {number} squared?" for number in range(200)]
record = Path("done.jsonl")
record.touch()
answers = dict(json.loads(line) for line in record.read_text().splitlines())
places = asyncio.Semaphore(20)


async def run(task):
    async with places:
        state = await agent.ainvoke({"messages": [("user", task)]})
        answers[task] = state["messages"][-1].content
    with record.open("a") as file:
        print(json.dumps([task, answers[task]]), file=file)


async def main():
    await asyncio.gather(*[run(task) for task in tasks if task not in answers])


asyncio.run(main())
print(len(answers), answers[tasks[12]])
