"""`eductor verify`: each pass against its contract, and the compiled function against eager."""
