from pathlib import Path

from pydantic_ai import Agent, ModelMessagesTypeAdapter

agent = Agent("openai-chat:gpt-5")
file = Path("anna.json")
history = ModelMessagesTypeAdapter.validate_json(file.read_bytes()) if file.exists() else []
while question := input("> "):
    result = agent.run_sync(question, message_history=history)
    history = result.all_messages()
    file.write_bytes(result.all_messages_json())
    print(result.output)
