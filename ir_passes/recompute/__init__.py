"""What torch.utils.checkpoint marked is computed again in the backward."""
