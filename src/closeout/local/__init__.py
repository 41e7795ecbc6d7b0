"""How small models are asked: a strategy that makes an answer in two ways and compares them."""
