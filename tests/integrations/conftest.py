"""Lightning and transformers import torchvision, which some torch builds refuse at first."""

from gradaudit.user_code import import_torchvision

import_torchvision("ops")
