"""Every change of representation: torch to IR, IR to Program."""
