from closeout import Agent

session = Agent("openai:gpt-5").session("anna")
while question := input("> "):
    print(session.run_sync(question).answer)
