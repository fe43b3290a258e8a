"""The rules of `pass_patterns` in the post-grad stage, by subject."""
