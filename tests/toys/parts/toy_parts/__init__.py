"""Parts of epilogues."""
