"""The common interface of ops: tensors, data flow, JSON; caches and rotary embedding, which kinds share."""
