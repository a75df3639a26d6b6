"""What sparse rows are refused for, before any work: nothing is densified that may not fit.

Learns: nobody anything. What leaves a party is sized by its P columns whether cells are stored or
    not: which columns occur in a batch is data, and a product of fewer columns would tell it.
"""

from securevfl.data.tables import PartyTable
from securevfl.errors import ConfigError
from securevfl.models.curvature import MOST_GRAM_COLUMNS
from securevfl.models.local_model import Network
from securevfl.protocols.plan import Plan
from securevfl.sparse import Matrix, SparseRows

DENSE_BYTES = 1 << 28
"""Of a batch over all P columns, where its rows have to be an array."""


def check_sparse(plan: Plan, table: PartyTable[Matrix], network: Network | None) -> None:
    """Refuse a job that would need more of a party's sparse rows as an array than is reasonable.

    Args:
        plan: of the job.
        table: the party's columns; dense ones pass.
        network: what the party trains in place of a linear model.

    Raises:
        ConfigError: it would; the message says what passes.
    """
    if not isinstance(table.train, SparseRows):
        return
    party, columns = table.name, table.train.shape[1]
    of_sparse = f"party {party!r} holds sparse rows of {columns} columns"
    if not plan.algorithm.takes_sparse:
        raise ConfigError(
            f"{of_sparse}: algorithm {plan.algorithm.name!r} takes dense ones; use fedbcd-p or fdml"
        )
    if plan.representation is not None and party == plan.facts.label_party:
        raise ConfigError(f"{of_sparse}: a head at the label party takes dense ones")
    if network is not None and network.precision == "single":
        raise ConfigError(f"{of_sparse}: their products are float64, not precision = 'single'")
    whole = _needs_gram(plan, network)
    if whole and columns > MOST_GRAM_COLUMNS:
        raise ConfigError(
            f"{of_sparse}: {whole} needs a matrix of P x P numbers, for at most "
            f"{MOST_GRAM_COLUMNS} columns; give local_steps a number and learning_rate one"
            + (" and round_trips = 2" if plan.exchange.encrypts else "")
        )
    rows, what, most = plan.most_batch_rows, "batches", DENSE_BYTES // (8 * columns)
    if plan.exchange.shares_parameters:
        rows, what = plan.facts.rows, "all rows"
    is_made_dense = network is not None and network.kind != "mlp"
    if (plan.exchange.encrypts or is_made_dense) and rows > most:
        why = f"exchange {plan.exchange.name!r}" if plan.exchange.encrypts else "this network"
        raise ConfigError(
            f"{of_sparse}: {why} takes {what} as arrays over all of them, {rows} rows of "
            f"{8 * rows * columns >> 20} MiB where {DENSE_BYTES >> 20} are allowed; {most} rows "
            "pass, and linear models in exchange 'plain' or 'masked' need no array"
        )


def _needs_gram(plan: Plan, network: Network | None) -> str:
    if network is not None:
        return ""
    if plan.rule.exact:
        return "local_steps = 'exact'"
    if plan.exchange.shares_parameters:
        return f"exchange {plan.exchange.name!r}"
    trips = plan.job.exchange.round_trips
    if plan.exchange.encrypts and (trips == 1 or (trips == "auto" and plan.networks)):
        return f"round_trips = {trips}"
    return ""
