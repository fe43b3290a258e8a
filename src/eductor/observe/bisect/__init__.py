"""`eductor bisect`: find the one rewrite that makes a program wrong."""
