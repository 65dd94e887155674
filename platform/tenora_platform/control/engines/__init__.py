"""The engines that are up."""
