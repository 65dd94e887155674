"""The parts of the scheduler: the plan of a step, whose turn it is, who gives way, what is not free yet. Pure."""
