"""Running a user's script and intercepting each function that it compiles."""
