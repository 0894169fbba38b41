"""How people are let in whom a proxy has asked who they are."""
