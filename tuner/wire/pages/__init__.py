"""What the dashboard's pages and pictures show."""
