"""The networks, their losses, and how they are built from a configuration."""
