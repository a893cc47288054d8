"""The ways to compute a layer, behind one protocol: `Backend`."""

from .choose import BACKENDS, StageOptions, plan_stage, request_of
from .protocol import Backend, Plan, Request

__all__ = ['BACKENDS', 'Backend', 'Plan', 'Request', 'StageOptions', 'plan_stage', 'request_of']
