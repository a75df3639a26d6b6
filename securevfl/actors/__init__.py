"""A job's parties as actors: processes or Ray actors, each with its own data and channel.

A supervisor starts them, introduces them to each other, and starts all again where one dies; their
messages never pass through it.
"""
