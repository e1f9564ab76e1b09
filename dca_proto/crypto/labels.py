"""The table of all domain labels (DESIGN §9): a hash, key, tag or signature of one purpose is no valid one of another.

Each label stands for one purpose, and is used in one place of the code. BLAKE2b takes it as its personalisation,
SHAKE128 and Ed25519 as a part of the message. All begin with `PREFIX`, which names the version of the protocol.

How a label is used, `Label.how`:

    digest    BLAKE2b-256 of the inputs, each behind its length in 8 bytes
    hash      BLAKE2b of the input, without lengths or a key
    derive    BLAKE2b keyed with the first input
    SHAKE128  of the first input, the label and the other inputs
    Ed25519   the signature covers the label and the inputs
"""

from __future__ import annotations

from typing import NamedTuple

PREFIX = b"dca5-"
PERSON_BYTES_MAX = 16
"""The size of BLAKE2b's personalisation."""
DIGEST, HASH, DERIVE, SHAKE, SIGNED = "digest", "hash", "derive", "SHAKE128", "Ed25519"

ALL, ONE = "everybody", "the actor"
PAIR_ONLY, ENDS = "client and Compute node", "sender and receiver"
SERVERS = "Compute nodes and trainers"
ENROLLING = "client and registrar"


class Label(NamedTuple):
    """A row of the table.

    Attributes:
        text: the label. how: one of the five ways above. inputs: what enters. gives: the purpose of the result.
        known_to: who can compute the result. A result that only some can compute is a secret of theirs.
    """

    text: bytes
    how: str
    inputs: str
    gives: str
    known_to: str


TABLE: dict[bytes, Label] = {}
"""All labels, in the order of the table."""


def _label(name: str, how: str, inputs: str, gives: str, known_to: str) -> bytes:
    text = PREFIX + name.encode()
    assert text not in TABLE, "each purpose has a label of its own"
    assert how == SIGNED or len(text) <= PERSON_BYTES_MAX, "BLAKE2b has no room for more"
    TABLE[text] = Label(text, how, inputs, gives, known_to)
    return text


# --- identities and federations (§2.1, §2.7) ---
ID = _label("id", HASH, "Ed25519 public key", "an actor's id, 16 bytes", ALL)
SIGNATURE = _label("signature", SIGNED, "federation id, version, body", "the signature of a message", ONE)
CERTIFICATE = _label(
    "certificate", SIGNED, "client's public key, expiry, sealed name", "the certificate's signed body", ALL
)
FEDERATION = _label("federation", DIGEST, "name, enrolment key", "the federation's id", ALL)
FILE = _label("file", DIGEST, "federation id, body", "the hash of a federation file", ALL)

# --- enrolment by a registrar (§2.9) ---
ENROL_CODE = _label(
    "enrol-code", DIGEST, "federation id, one-time code", "what a registrar stores of a code", ENROLLING
)
ENROL_REQUEST = _label(
    "enrol-request", SIGNED, "one-time code, client's public key", "a device's request for a certificate", ONE
)
RENEW_REQUEST = _label("renew-request", SIGNED, "client's public key, time", "a client's request for a later one", ONE)
BROKER_PASSWORD = _label(
    "broker-pass", DERIVE, "registrar key's seed; client's id", "a client's password for the broker, 24 bytes",
    ENROLLING,
)  # fmt: skip
ENTRANCE = _label("entrance", DIGEST, "addresses, CA, federation file", "what an invitation's link promises", ALL)

# --- names of columns (§3) ---
CATEGORIES = _label("categories", DIGEST, "a column's categories", "6 bytes that state a long list of them", ALL)

# --- names of clients (§2.1) ---
NAMES = _label("names", DERIVE, "enrolment key's seed", "the name key, with which clients' names are sealed", SERVERS)
NAMES_WRAP = _label(
    "names-wrap", DIGEST, "X25519 point, both public keys, federation id",
    "the key that seals the name key to a member", "the owner and the member",
)  # fmt: skip
NAME_NONCE = _label(
    "name-nonce", DERIVE, "name key; client's public key, expiry, name", "the nonce of a sealed name, 24 bytes", SERVERS
)

# --- secrets of an identity (§2.6, §8) ---
HEDGE = _label("hedge", DERIVE, "identity's seed", "the secret that hedges randomness", ONE)
EPOCH = _label("epoch", DERIVE, "hedge secret; 32 fresh bytes, epoch, time", "an epoch's X25519 secret", ONE)
ROOT = _label(
    "root", DERIVE, "hedge secret; 32 fresh bytes, Hello hash, *ah*, charge number, x",
    "the root of one contribution, release or report", ONE,
)  # fmt: skip
LONG_INPUT = _label("long-input", HASH, "an input of `root` above 65,536 bytes", "its stand-in, 64 bytes", ONE)
NOISE = _label("noise", DERIVE, "root", "the noise key", ONE)
CONTRIBUTION_ID = _label("contrib-id", DERIVE, "root", "the contribution's or release's id, 16 bytes", ONE)
BLINDS = _label("blinds", DERIVE, "root", "the key of a verified contribution's blinds", ONE)
NOISE_BITS = _label("noise-bits", DERIVE, "root", "the key of its noise bits", ONE)
ROUNDING = _label("rounding", DERIVE, "root", "the dither of its rounding, 2 bytes", ONE)
COIN = _label("coin", DERIVE, "hedge secret; 32 fresh bytes, *ah*, entries", "a node's coin, 16 bytes", ONE)
RECEIPT_KEY = _label("receipt-key", DERIVE, "root", "the key of a release's receipt", "client and trainer")
NOISE_CHUNK = _label("noise-chunk", DERIVE, "noise key; chunk's number", "the ChaCha20 key of a chunk of noise", ONE)
NOISE_SPARE = _label("noise-spare", DERIVE, "noise key; position, block", "further bits of a rare candidate", ONE)
LOCAL_CHUNK = _label("local-chunk", DERIVE, "noise key; chunk's number", "the ChaCha20 key of a chunk of reports", ONE)
LOCAL_SPARE = _label("local-spare", DERIVE, "noise key; row, word, block", "further bits of a report's rare tie", ONE)
STORE = _label("store", DERIVE, "identity's seed", "the key of the store's checks", ONE)
STORE_OWNER = _label("store-owner", DERIVE, "store key", "the store's owner, 16 bytes", ONE)
STORE_TAG = _label("store-tag", DERIVE, "store key; record", "a record's tag, 16 bytes", ONE)
STORE_SUM = _label("store-sum", DERIVE, "store key; record's tag", "the tag's part of the seal, 16 bytes", ONE)
STORE_SEAL = _label("store-seal", DERIVE, "store key; number and sum of records, count", "the seal, 16 bytes", ONE)
BACKUP = _label("backup", DERIVE, "store key", "the key of the store's backups", ONE)
STORE_COUNT = _label("store-count", DERIVE, "store key; transactions, time", "the counter's tag, 16 bytes", ONE)

# --- what a client and a Compute node share (§2.4) ---
PAIR = _label(
    "pair", DIGEST, "X25519 point, both public keys, federation id, both ids and epochs", "the pair key k_ij", PAIR_ONLY
)
MASK = _label("mask", SHAKE, "k_ij; *ah*, entry", "tag and mask of one contribution", PAIR_ONLY)
SHARE = _label(
    "share", SHAKE, "k_ij; *ah*, entry, attempt", "the key of a share of a verified contribution's words", PAIR_ONLY
)
ONE_KEYS = _label(
    "one", DERIVE, "k_ij; *ah*, contribution id", "encryption key, receipt and late notice, 64 bytes", PAIR_ONLY
)
ASK = _label("ask", DERIVE, "k_ij; *ah*", "the tag with which a client asks for aborts, 16 bytes", PAIR_ONLY)

# --- sealed messages, and the receipts of releases (§2.5, §4.7, §5.3) ---
EPHEMERAL = _label(
    "ephemeral", DIGEST, "32 fresh bytes, receiver's key, plaintext, associated data",
    "a sealed message's X25519 secret", "the sender",
)  # fmt: skip
REPLY = _label("reply", DIGEST, "X25519 point, both public keys", "the key of an answer to the trainer", ENDS)
PEER_LIST = _label("peer-list", DIGEST, "X25519 point, both public keys", "the key of a list to another node", ENDS)
RECEIPT = _label("receipt", DERIVE, "receipt key", "a release's receipt, 16 bytes", "client and trainer")
LATE = _label("late", DERIVE, "receipt key", "the notice that a release came too late, 16 bytes", "client and trainer")

# --- hashes of messages (§2.3, §4) ---
ANNOUNCEMENT = _label("announce", DIGEST, "signed announcement", "*ah*", ALL)
LEAF = _label("leaf", DIGEST, "invited client's id", "a leaf of the invitations' tree", ALL)
NODE = _label("node", DIGEST, "left node, right node", "an inner node of that tree", ALL)
HELLO = _label("hello", DIGEST, "signed Hello", "the Hello's hash", ALL)
LIST = _label(
    "list", DIGEST, "*ah*, node, entries; in a verified sum, coin", "the hash of a frozen list", "Compute nodes"
)
SET = _label("set", DIGEST, "*ah*, entries of A", "the hash of A", "Compute nodes")
ANSWER = _label(
    "answer", DIGEST, "*ah*, node, hashes of lists, objections; in a verified sum, openings",
    "the hash of an answer", ALL,
)  # fmt: skip
CHALLENGE = _label(
    "challenge", DIGEST, "*ah*, hashes of lists", "the challenge of a verified sum, 32 bytes", "Compute nodes"
)
POINT = _label("point", DERIVE, "challenge", "the point r, 64 bytes", "Compute nodes")
NOISE_COINS = _label("noise-coins", SHAKE, "challenge; entry", "the noise coins of an entry", "Compute nodes")
RELEASES = _label("releases", DIGEST, "*ah*, ids and signed releases", "the hash of a round's releases", "the trainer")
PARTS = _label("parts", HASH, "payload", "the hash in each part of a message, 16 bytes", ALL)

# --- outside rounds ---
JOURNAL = _label("journal", HASH, "checksum before, entry", "the checksum of an entry in a job's journal", ONE)
TEST_RANDOM = _label("test-random", DIGEST, "name", "the random bytes of tests and the emulator", ALL)
