"""The API of torch's pattern matcher under its own names, on top of our matcher."""
