"""Random programs at module level, compiled by Eductor and compared with eager: `python -m fuzz` (see CONTRIBUTING.md)."""
