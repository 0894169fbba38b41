"""C programs of the tests, and a recorder of the driver calls that a program makes."""
