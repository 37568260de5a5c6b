"""The tests. What they import is what the studio's heavy processes import: transformers does not see torchvision, which raises where
it was built for another kind of torch. Modules `..._run`, which tests start as processes, do without all that the studio does without."""

import sys

from backend.imports import TORCHVISION, hide_library, hide_unused_libraries

if any(word.startswith("tests.") and word.endswith("_run") for word in sys.orig_argv):
    hide_unused_libraries()
hide_library(TORCHVISION)
