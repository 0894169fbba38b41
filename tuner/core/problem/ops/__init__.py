"""The common interface of ops: tensors, data flow, JSON; and caches and rotary embedding, which several kinds use."""
