"""The tests. As in the studio's heavy processes, transformers does not see torchvision, whose import fails with another build
of torch.

Tests start the modules `..._run` as processes. These modules hide all libraries that the studio hides.
"""

import sys

from backend.imports import TORCHVISION, hide_library, hide_unused_libraries

if any(word.startswith("tests.") and word.endswith("_run") for word in sys.orig_argv):
    hide_unused_libraries()
hide_library(TORCHVISION)
