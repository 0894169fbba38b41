"""What runs inside the disposable child that owns one GPU."""
