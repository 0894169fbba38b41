"""What needs no GPU: the proof, the service, the compiler."""
