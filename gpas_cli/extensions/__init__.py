"""Capabilities around the engine, each in a folder of its own with all that it adds (`gpas_cli.extension`).

The engine imports none of them, and works when any of them is deleted.
"""
