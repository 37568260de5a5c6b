"""The code that makes the demo checkpoints in `models`. Nothing in the product imports it. transformers does not see torchvision
here either."""

import sys

from backend.imports import TORCHVISION

sys.modules.setdefault(TORCHVISION, None)
