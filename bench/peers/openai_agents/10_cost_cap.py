from agents import Agent, RunHooks, Runner, function_tool


@function_tool
def read_page(number: int) -> str:
    """Read a page of the catalogue."""
    return f"Page {number}. " + "Lamps, chairs and tables. " * 2000


class TooExpensive(Exception):
    pass


class CostCap(RunHooks):
    async def on_llm_end(self, context, agent, response):
        usage = context.usage
        if usage.input_tokens * 1.25e-6 + usage.output_tokens * 10e-6 > 0.10:
            raise TooExpensive


agent = Agent(name="reader", model="gpt-5", tools=[read_page])
try:
    result = Runner.run_sync(agent, "Read the whole catalogue.", hooks=CostCap(), max_turns=100)
    print("answered", result.final_output)
except TooExpensive:
    print("max_cost")
