"""Networks of other libraries, behind the interface of a predictor."""
