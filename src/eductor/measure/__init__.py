"""`eductor bench`: models in eager, with Inductor and with Eductor, side by side in one run."""
