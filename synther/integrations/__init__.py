"""Synthetic replay for agents of other libraries: one module per library, which imports that library."""
