"""What nodes read, write and alias; what may move; the invariants of each stage."""
