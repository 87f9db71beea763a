"""Tests of the live service."""
