from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def read_page(number: int) -> str:
    """Read a page of the catalogue.

    Args:
        number: the page
    """
    return f"Page {number}. " + "Lamps, chairs and tables. " * 2000


def cost_cap(step, agent):
    usage = agent.monitor.get_total_token_counts()
    if usage.input_tokens * 1.25e-6 + usage.output_tokens * 10e-6 > 0.10:
        agent.memory.steps[-1].is_final_answer = True
        print("max_cost")
        agent.interrupt()


agent = ToolCallingAgent(tools=[read_page], model=OpenAIModel("gpt-5"), step_callbacks=[cost_cap], max_steps=100)
try:
    print("answered", agent.run("Read the whole catalogue."))
except Exception as error:
    print(error)
