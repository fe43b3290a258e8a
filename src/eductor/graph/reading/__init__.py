"""Reading a node: its operator and its arguments by schema name, however the call is spelled."""
