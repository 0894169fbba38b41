"""The server's process: how its parts are connected, its socket, and failover."""
