"""The tests. What they import is what the studio's heavy processes import: transformers does not see torchvision, which raises where
it was built for another kind of torch."""

from backend.imports import TORCHVISION, hide

hide(TORCHVISION)
