"""The view in which a clip is made anew."""
