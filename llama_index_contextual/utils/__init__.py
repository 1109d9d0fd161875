"""Helpers for all parts of the package.

They cover errors, metadata keys, text, languages, dates, tokens and SQLite files.
"""
