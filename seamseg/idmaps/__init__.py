"""Maps of ids and labels as runs and counts: numpy and a C library, no torch."""
