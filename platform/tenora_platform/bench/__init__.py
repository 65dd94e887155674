"""`tenora bench`: what an OpenAI-compatible server does under load, as its clients see it. Terms: docs/bench.md.

targets, prompts, lengths, weights, arrivals, trace -> workload     what is asked, of whom, when
load, client (http, events)                                         asking it
record -> metrics, lag -> report, plot                              what was seen, and what it means
sweep                                                               the highest rate that meets an SLO
"""
