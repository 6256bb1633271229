"""Build hook. Metadata is in pyproject.toml; the operators are plain torch today, so there is nothing to compile."""

from setuptools import setup

setup()
