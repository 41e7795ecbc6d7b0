from agents import Agent, Runner, SQLiteSession

agent = Agent(name="chat", model="gpt-5")
session = SQLiteSession("anna", "chat.db")
while question := input("> "):
    print(Runner.run_sync(agent, question, session=session).final_output)
