"""Logging, metrics and the audit trail."""
