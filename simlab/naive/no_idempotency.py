"""No idempotent handler: the effect is made again whenever the handler runs again.

Not a mistake of the scheduler's. It is what every scheduler with at-least-once delivery asks of its handlers,
and exactly-once is impossible: between the work and the record of it there is always a moment to die in.
"""

from __future__ import annotations

from simlab.effects import EffectMode
from simlab.scenario import Variant

__all__ = ["NO_IDEMPOTENCY"]

NO_IDEMPOTENCY = Variant(
    name="no-idempotency",
    says="the handler's effect is not deduplicated by the job's identity",
    caught_by=("one-effect",),
    effect_mode=EffectMode.PLAIN,
)
