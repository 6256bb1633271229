"""Models inside of other tools."""
