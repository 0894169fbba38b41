"""Webhooks: where they may go, and how they are sent."""
