"""Tests of seamseg.classification."""
