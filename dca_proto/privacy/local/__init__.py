"""Local differential privacy: each report is private by itself, against everybody, whoever collects it.

A mechanism M is (ε, δ)-locally private if for all values v, v' of one client and all sets Z of reports
P(M(v) in Z) <= e^ε P(M(v') in Z) + δ (Kasiviswanathan et al. 2008; definition 2.1 of the LDP paper). Nobody has to be
trusted: no Compute node, no session, no other client's noise. The price is much more noise than the Distributed Compute
Algorithm's: each of n reports carries about what there the whole sum does, so a mean is about √n times less exact.

    AnalyticGaussian(epsilon, delta, sensitivity, dimension)   vectors of integers on the grid, (ε, δ)
    GridLaplace(epsilon, sensitivity, dimension)               vectors of integers on the grid, ε
    RandomisedResponse(epsilon, categories)                    one of k categories, or none, told as one, ε
    UnaryEncoding(epsilon, categories)                         one of k categories, or none, told as k bits, ε

**Over the protocol** they are the mechanisms of report rounds (DESIGN §5.2), which a trainer asks for by their names:
policy, ledger, replays and bytes are the protocol's affair (`dca_proto.protocol.release`). Beside `randomise`, the
protocol uses `to_inputs` (a contribution becomes a value), `encode` and `decode` (a report becomes bytes, and back),
`summed` and `decode_reports` (reports become a sum). By themselves, for any named statistic at f fraction bits:

    sensitivity = client_sensitivity(statistic, rows_max, f)
    mechanism = AnalyticGaussian(1.0, 1e-6, sensitivity, statistic.dimension)
    report = mechanism.randomise([contribution(statistic, rows, rows_max, f)], os.urandom(32))

Each has `randomise(values, key)` for clients and `estimate(reports)` for whoever collects. All randomness is a ChaCha20
stream of a key of 32 bytes, fresh from the operating system for every call: the same key with another value gives the
two away. Decisions are exact, in integers. A client that reports twice spends twice: `privacy.cost` says what. Nothing
here is charged to a ledger; in a report round the client's is.
"""

from dca_proto.privacy.local.categorical import MISSING
from dca_proto.privacy.local.estimate import LocalEstimate
from dca_proto.privacy.local.gaussian import AnalyticGaussian
from dca_proto.privacy.local.laplace import GridLaplace
from dca_proto.privacy.local.registry import registered, resolve
from dca_proto.privacy.local.response import RandomisedResponse
from dca_proto.privacy.local.unary import UnaryEncoding
from dca_proto.privacy.mechanism import LocalMechanism

__all__ = [
    "MISSING",
    "AnalyticGaussian",
    "GridLaplace",
    "LocalEstimate",
    "LocalMechanism",
    "RandomisedResponse",
    "UnaryEncoding",
    "registered",
    "resolve",
]
