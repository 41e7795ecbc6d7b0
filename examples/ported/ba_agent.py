"""Tools from BA-Agent: wrapped functions in three response formats, with the telemetry of all calls collected.

python examples/ported/ba_agent.py "Which product sold best?" --model openai:gpt-5
"""

from __future__ import annotations

import argparse
from typing import Any

from closeout import Agent, ResponseFormat, TelemetryCollector, UnifiedToolWrapper

SALES = [{"product": product, "sold": 10 * len(product)} for product in ("lamp", "table", "bookshelf", "chair")]


@UnifiedToolWrapper.wrap_tool(tool_name="query_sales", response_format=ResponseFormat.CONCISE)
def query() -> list[dict[str, Any]]:
    """Return the sales of all products."""
    return SALES


@UnifiedToolWrapper.wrap_tool(response_format=ResponseFormat.STANDARD)
def total(product: str) -> int:
    """Return how many pieces of a product were sold."""
    return sum(row["sold"] for row in SALES if row["product"] == product)


@UnifiedToolWrapper.wrap_tool(response_format=ResponseFormat.DETAILED)
def forecast(product: str) -> float:
    """Forecast the sales of a product."""
    raise LookupError(f"There is no model for {product}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("question")
    parser.add_argument("--model", default="openai:gpt-5")
    args = parser.parse_args()
    collector = TelemetryCollector()
    result = Agent(args.model, [query, total, forecast], telemetry=collector).run_sync(args.question)
    print(result.answer)
    print(collector.get_report())


if __name__ == "__main__":
    main()
