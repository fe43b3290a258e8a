"""The manual of the passes, generated from their docstrings, contracts and examples."""
