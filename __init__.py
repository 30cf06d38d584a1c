"""hpir."""
