"""Other processes that take shares of a multi-exponentiation, for parties with cores to spare.

They get public data and their own party's X only: ciphertexts, exponents, n. Threads would not
do: big integers hold the interpreter's lock (two threads took 1.15 times as long as one, two
processes 0.63 to 0.73).
"""

import weakref
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import pairwise
from multiprocessing import get_all_start_methods, get_context

from gmpy2 import mpz

from securevfl.crypto.multi_exponentiation import Exponents, accumulated
from securevfl.errors import CryptoError


class Workers:
    """So many processes, this one included; the others start at the first use.

    Args:
        count: 2 or more.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        # A forked child would share locks and files of this process.
        method = "forkserver" if "forkserver" in get_all_start_methods() else "spawn"
        self._pool = ProcessPoolExecutor(count - 1, mp_context=get_context(method))
        weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    def accumulated(
        self, ciphertexts: Sequence[int], exponents: Exponents, n: mpz
    ) -> tuple[list[mpz], list[mpz]]:
        """As `multi_exponentiation.accumulated`, rows shared out evenly.

        Raises:
            CryptoError: a worker has died.
        """
        edges = [exponents.rows * share // self._count for share in range(self._count + 1)]
        shares = [
            (ciphertexts[first:end], exponents.share(first, end), n)
            for first, end in pairwise(edges)
        ]
        try:
            waiting = [self._pool.submit(accumulated, *share) for share in shares[1:]]
            units, sums = accumulated(*shares[0])
            found = [each.result() for each in waiting]
        except BrokenProcessPool as error:
            raise CryptoError(
                "a worker process died; scripts that use workers need if __name__ == '__main__'"
            ) from error
        modulus = n * n
        for more_units, more_sums in found:
            units = [a * b % modulus for a, b in zip(units, more_units, strict=True)]
            sums = [a + b for a, b in zip(sums, more_sums, strict=True)]
        return units, sums
