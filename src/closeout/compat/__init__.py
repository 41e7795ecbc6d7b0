"""Other systems' names and shapes over these packages: runners, wrapped tools, the live stream as dicts.

Nothing below imports this package; what a run calls are objects that users pass in.
"""
