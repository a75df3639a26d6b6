"""Parties of different organizations: each runs its own program, on its own machine, for itself.

Nobody operates a job: the parties sign one agreement, meet over links of their own, and each gets
its own result.
"""
