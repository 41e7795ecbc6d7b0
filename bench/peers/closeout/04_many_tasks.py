from closeout import Agent

tasks = [f"What is {number} squared?" for number in range(200)]
results = Agent("openai:gpt-5").run_many_sync(tasks, limit=20, key="squares")
print(len(results), results[12].answer)
