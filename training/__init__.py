"""The training of the demo checkpoints in `models`. No module of the product imports it. torchvision is hidden from transformers
here too."""

from backend.imports import TORCHVISION, hide_library

hide_library(TORCHVISION)
