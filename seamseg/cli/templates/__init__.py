"""Templates of `seamseg new`: one module for each kind of component, which is named `example` in it."""
