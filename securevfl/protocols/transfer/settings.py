"""`[ftl]` of a resolved job, and the exchanges of its rounds."""

from collections.abc import Iterator

from securevfl.job import FtlSettings
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.party import Step


def settings_of(plan: Plan) -> FtlSettings:
    """The section, with defaults where the job says nothing."""
    return plan.job.section(FtlSettings, plan.algorithm.name)


def steps_of(plan: Plan, round_index: int) -> Iterator[Step]:
    """The exchanges of a round: one for both, or one each, the label party first."""
    names, label_party = plan.facts.names, plan.facts.label_party
    if not settings_of(plan).in_turns:
        yield Step(round_index, receivers=names, fresh=names)
        return
    for turn, name in enumerate(sorted(names, key=lambda each: each != label_party)):
        others = tuple(each for each in names if each != name)
        yield Step(2 * round_index + turn, receivers=(name,), fresh=others)
