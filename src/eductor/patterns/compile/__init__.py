"""From an expression to the steps that look for it: plain forms, programs, and one tree of steps for all rules of a pass."""
