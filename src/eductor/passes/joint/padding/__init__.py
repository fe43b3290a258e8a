"""What `pad_mm` stands on: products as a graph has them, the decision, times that are measured, the rewrite."""
