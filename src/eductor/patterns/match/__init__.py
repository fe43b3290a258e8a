"""How nodes are read as calls, what is passed over between them, and what a match is."""
