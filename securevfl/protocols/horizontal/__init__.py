"""Rows split over many clients, one model of all: FedBCGD and what it is held against.

A server holds θ, all parameters of a model as one vector of shape (p,); clients hold rows. What a
client and the server compute are pure functions (`local`, `server`), so that every engine averages
with the same code: the project's own channel (`simulation`), and Flower.
"""
