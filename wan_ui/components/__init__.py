"""Buttons, icons, messages and other interface elements that all views use."""
