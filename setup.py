"""Build hook. Metadata is in pyproject.toml; the operators are plain torch today, so there is nothing to compile.

The packages are listed here because pyproject.toml cannot say that the experiments of `configs/` are installed as
`seamseg/configs/`, where `seamseg.config.find_experiment` looks for them.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["seamseg", "seamseg.*"]), "seamseg.configs"],
    package_dir={"seamseg.configs": "configs"},
    package_data={"seamseg": ["py.typed", "config/defaults/*.ini"], "seamseg.configs": ["*.ini"]},
    include_package_data=False,
)
