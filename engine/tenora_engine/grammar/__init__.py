"""Structured output: what a request's text must look like, as masks over tokens.

A grammar is checked and compiled in a process of its own (`worker`), one at a time and fair between tenants
(`compiler`); a request waits for its grammar without stalling anybody (`grammars`) and follows it token by token
(`constraint`).
"""
