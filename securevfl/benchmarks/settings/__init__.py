"""What each benchmark is told: a frozen dataclass a command, whose fields are its options.

A field's annotation says all that `securevfl ... --help` shows. Nothing here imports what runs.
"""
