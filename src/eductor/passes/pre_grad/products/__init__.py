"""What the passes on matrix products share: swapped dimensions, compressed features, and who sees a layout."""
