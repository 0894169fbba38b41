"""What an op of any kind is: its tensors, who reads whom, its JSON; caches and rotary embedding, which kinds share."""
