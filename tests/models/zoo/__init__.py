"""Small models with random weights, each with batches and a loss, and a way to train them."""

from .own import OWN
from .senses import SENSES
from .subject import Subject as Subject
from .text import BOTH, DECODERS, ENCODERS

MODELS = {**DECODERS, **ENCODERS, **BOTH, **SENSES, **OWN}
