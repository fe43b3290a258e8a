"""The rules of `pass_patterns`, by what they are about: each is a function of the graph, the rewriter and a call."""
