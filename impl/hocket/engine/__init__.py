"""The engine: drives scheduler and runner, synchronously or with several dispatches in flight; the offline
API.
"""
