"""Maps of ids and labels: read as runs, compared, resized. numpy and a C library of our own, never torch.

What scores files imports this and not `seamseg.ops`, whose operators are torch's: a process that compares maps starts
at once and stays small.
"""
