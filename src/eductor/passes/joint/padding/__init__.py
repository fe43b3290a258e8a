"""The parts of `pad_mm`: reading products, deciding the pads, measuring times, rewriting."""
