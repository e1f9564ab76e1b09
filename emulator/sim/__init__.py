"""Virtual time: production actors, unchanged, over a model of their machines, their links and their MQTT broker.

    simulator   the clock and everything that is still to happen
    streams     a random stream for each purpose
    trace       facts in their order, and their digest
    events      what the emulator itself does to actors, and observers
    process     one actor as its machine runs it: batches, durable writes, then messages; kills and restarts
    disk        what survives a kill
    link        the way between one machine and the broker: delay, bandwidth, loss, repetition, partitions
    lane        packets, and QoS 1 in one direction: up at the machine, down at the broker
    broker      MQTT 3.1.1: sessions, subscriptions, retained messages, bounded queues, restarts
    world       a whole federation on one simulator
    lockstep    one simulation in several processes, all at the same instant; team: those processes and their pipes

The same seed gives the same run, byte for byte in its trace. Cryptography is real; randomness comes in named streams
of the seed, and each start of each actor has a stream of its own.

What the model is. Between actor and wire stand the same parts as in `dca_proto.runtime`: one transaction before the
messages that depend on it, packets of limited size, windows of packets in flight, topics, subscriptions. QoS 1 keeps
each packet until it is acknowledged over the same link; a connection that ends puts back what was not, in order, so
that things come twice or late, and never in vain while both memories live. A machine whose power fails loses what had
not left it; the broker loses what a clean session, an expiry, a full queue or a kill loses. One id has one connection.

What it is not. There are no bytes of MQTT or TCP: sizes are those of payloads, and acknowledgements take a link's delay
but no bandwidth. A lost transmission is one that is repeated after a fixed while; there is no congestion. A half-open
connection lasts until the link is mended: there is no keep-alive. Over ideal links, a broadcast lands at 2,048 sessions
at a time; a message to one session, sent just after, overtakes it at the later ones. Work takes a machine's fixed time
per batch and transaction, not what the cryptography costs; `emulator.scaling` measures that. A machine that never
handles two events in one moment has a transaction for each, where a live one would gather some. A test holds the rest
against mosquitto: the same messages, sizes and facts.
"""
