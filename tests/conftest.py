"""Fixtures and settings every test shares."""
