"""`eductor explain` and `eductor why-not`: what each stage and pass did to each graph."""
