"""The tests. What they import is what the studio's heavy processes import: transformers does not see torchvision, which raises where
it was built for another kind of torch."""

import sys

from backend.imports import TORCHVISION

sys.modules.setdefault(TORCHVISION, None)
