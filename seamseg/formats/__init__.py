"""File formats of others: labels, file names, reading and writing, one place each."""
