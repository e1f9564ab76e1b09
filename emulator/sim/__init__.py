"""Virtual time: production actors, unchanged, on a model of their machines, links and MQTT broker.

    simulator   the virtual clock and the queue of scheduled calls
    streams     a random stream for each purpose
    trace       facts in order, and their digest
    events      facts of the emulator itself; the base class of observers
    process     one actor on its machine: batches, durable writes, then messages; kills and restarts
    disk        the records that survive a kill
    link        one machine's link to the broker: delay, bandwidth, loss, repetition, partitions
    lane        packets with QoS 1 in one direction: up at the machine, down at the broker
    broker      MQTT 3.1.1: sessions, subscriptions, retained messages, bounded queues, restarts
    world       a whole federation on one simulator
    lockstep    one simulation in several processes, all at the same instant; team: those processes and their pipes

The same seed gives the same run, byte for byte in its trace. Cryptography is real. Randomness comes from named streams
of the seed; each start of each actor has its own.

What the model covers. Actors use the same steps as in `dca_proto.runtime`: one transaction before the messages that
depend on it, packets of limited size, windows of packets in flight, topics, subscriptions. With QoS 1, a sender keeps
each packet until it is acknowledged over the same link. If the connection ends, unacknowledged packets return to the
queue in order. So messages may arrive twice or late, but are not lost while both memories survive. A machine whose
power fails loses what it had not sent. The broker loses messages by a clean session, an expiry, a full queue or a kill.
An id has one connection at a time.

What it leaves out. There are no bytes of MQTT or TCP: sizes are those of payloads, and acknowledgements take the link's
delay but no bandwidth. A lost transmission is repeated after a fixed time; there is no congestion. A half-open
connection lasts until the link is mended: there is no keep-alive. Over ideal links, a broadcast reaches 2,048 sessions
at a time; a message sent to one session just after can overtake it. Work takes a fixed time per batch and transaction,
not the time of the cryptography, which `emulator.scaling` measures. A machine that never has two events at the same
instant commits a transaction for each; a live machine would batch some. A test compares the rest with mosquitto: the
same messages, sizes and facts.
"""
