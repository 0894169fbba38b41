"""The server's process: wiring, listening socket, and failover."""
