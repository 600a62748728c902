"""Synthetic replay for agents of other libraries. Each library has one module, which imports it."""
