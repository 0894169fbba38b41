"""Code that runs in the disposable child process that owns one GPU."""
