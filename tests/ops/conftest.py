"""Hypothesis without a deadline: the first call of an op is slow, and so are shared machines."""

from hypothesis import settings

settings.register_profile("ops", deadline=None, max_examples=50)
settings.load_profile("ops")
