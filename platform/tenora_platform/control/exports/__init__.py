"""Billing exports."""
