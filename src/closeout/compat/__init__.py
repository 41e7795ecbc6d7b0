"""Other systems' names and shapes over these packages: runners and wrapped tools.

Nothing below imports this package; what a run calls are objects that users pass in.
"""
