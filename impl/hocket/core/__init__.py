"""The nouns that every other part speaks in: configuration, requests, phases, step records, errors.

No torch, no asyncio, no clock and no randomness here or in anything imported from here.
"""
