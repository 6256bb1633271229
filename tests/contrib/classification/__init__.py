"""Tests of seamseg.contrib.classification."""
