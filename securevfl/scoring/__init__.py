"""Scores of a trained model: jointly over the channel, or of parts that lie in one place."""

from securevfl.scoring.joint_model import JointModel, load_models

__all__ = ["JointModel", "load_models"]
