"""The domain: what is asked, what may be chosen, what is legal, and why. No server, database or GPU."""
