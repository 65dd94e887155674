"""The base model: its spec, its weights, and one decoder whose differences are flags in the spec.

Imports torch, numpy and safetensors only, so that it can be run where nothing else of the engine is installed.
"""
