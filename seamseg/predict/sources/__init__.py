"""Where the images of a prediction run come from."""
