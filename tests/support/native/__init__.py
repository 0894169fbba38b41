"""C programs of the tests, and a recorder of the calls that a program makes at the driver's ABI."""
