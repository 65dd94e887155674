"""Gateway, control plane, metering and the command line: everything around the engines. No torch."""
