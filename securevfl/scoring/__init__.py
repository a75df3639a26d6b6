"""Scoring with a trained model: jointly over the network, or from all parts in one place."""

from securevfl.scoring.joint_model import JointModel, load_models

__all__ = ["JointModel", "load_models"]
