"""A replacement in the place of a match: where it goes, what it must agree in, and the check against its search function."""
