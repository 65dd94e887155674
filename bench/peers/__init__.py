"""Other servers to compare with: each installed into a virtual environment of its own below build/peers/, never ours.

The facts in these scripts (flags, environment, how the packages have to be completed) were found by running them.
"""
