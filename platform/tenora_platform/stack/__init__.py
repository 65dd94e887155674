"""The embedded platform: real servers from wheels, under a supervisor, in one data folder."""
