"""Recipes beyond the sources: components that are part of the package, and that nothing else in it knows."""
