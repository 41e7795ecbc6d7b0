"""Prices of a small shop."""


def price(amount: float) -> float:
    """The amount less the rebate: 10 % from 100 upwards."""
    return amount * 0.9 if amount > 100 else amount
