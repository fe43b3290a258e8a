"""`eductor bisect`: finds the rewrite that makes a program wrong."""
