"""Small programs, each one thing that ahead-of-time autograd must get right, and what compares them with eager."""
