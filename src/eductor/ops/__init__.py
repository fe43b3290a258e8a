"""Operators of our own, which passes emit and engines lower. Importing this registers them."""

from eductor.ops import random as random
