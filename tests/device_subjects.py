"""Models and records of the audits on the device, as factories for ``--model`` and ``--data``."""

from functools import partial

from audits.attack_inference.people import with_users
from audits.attack_text.sentences import texts, transformer

words = partial(texts, 12)
model_of_words = partial(transformer, width=48)
users = partial(with_users, users=8, each=12)
