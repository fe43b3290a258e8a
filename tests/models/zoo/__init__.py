"""Small models with random weights, each with batches and a loss, and a way to train them."""

from .own import OWN
from .senses import SENSES
from .subject import Subject as Subject
from .text import BOTH as BOTH
from .text import DECODERS as DECODERS
from .text import ENCODERS as ENCODERS

MODELS = {**DECODERS, **ENCODERS, **BOTH, **SENSES, **OWN}
