"""The code that makes the demo checkpoints in `models`. Nothing in the product imports it. transformers does not see torchvision
here either."""

from backend.imports import TORCHVISION, hide

hide(TORCHVISION)
