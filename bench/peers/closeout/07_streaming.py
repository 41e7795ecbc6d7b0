from closeout import Agent
from closeout.journal.subscribers import Progress


def price(item: str) -> float:
    """The price of an item in the shop."""
    return {"lamp": 40.0, "chair": 85.0}[item]


def show(event):
    match event:
        case Progress(kind="text", text=text):
            print(text, end="", flush=True)
        case Progress(kind="tool_name", text=name):
            print(f"[{name}]")


Agent("openai:gpt-5", tools=[price]).run_sync("What does a lamp cost?", listeners=[show])
