"""A model scored on a data set; the evaluation folder."""
