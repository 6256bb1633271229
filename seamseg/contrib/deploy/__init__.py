"""Export of trained networks to files that run without this package."""
