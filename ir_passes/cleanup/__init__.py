"""Passes that shorten a module and keep what it computes."""
