"""`eductor verify`: checks each pass against its contract, and the compiled function against eager."""
