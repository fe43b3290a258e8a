"""The rules of `pass_patterns` in the joint stage, by subject."""
