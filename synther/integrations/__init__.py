"""Synthetic replay for agents of other libraries: one file a library, which imports it at once."""
