"""The parties of a job as actors: processes or Ray actors, each with its own data and channel.

A supervisor starts the actors and introduces them to each other. If one dies, all start again.
Messages between actors never pass through the supervisor.
"""
