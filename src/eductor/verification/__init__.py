"""Checks each pass of a compile against its contract: effects, metadata, and values of the graph before and after."""
