"""One image to one result."""
