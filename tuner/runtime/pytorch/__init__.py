"""What the operators of PyTorch share: what they compute, check and find."""
