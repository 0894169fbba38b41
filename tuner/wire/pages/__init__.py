"""The data of the dashboard's pages and pictures."""
