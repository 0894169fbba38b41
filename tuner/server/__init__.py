"""The server's process: what is wired together, its socket, and who takes over when it dies."""
