"""What nodes read, write and alias; what may move; what each stage allows in its graphs."""
