/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* As layout.h, of the maps of connections: the programs write these, and the agent removes what
 * has ended. */

#pragma once

#include "event.h"

/* sluice_ct*: connections. In the keys the addresses are named for the reply
 * direction and the ports for the original one: an outgoing A:p to B:q has
 * daddr A, saddr B, dport q, sport p. The identifier of an ICMP echo is the
 * port on the side of the one who asks; the other port is 0. */

enum tuple_flags { TUPLE_OUT = 0, TUPLE_IN = 1, TUPLE_RELATED = 2, TUPLE_SERVICE = 4 };

struct tuple4_key {
	__be32 daddr;
	__be32 saddr;
	__be16 dport;
	__be16 sport;
	__u8 protocol;
	__u8 flags;
} __attribute__((packed));

struct tuple6_key {
	__u8 daddr[16];
	__u8 saddr[16];
	__be16 dport;
	__be16 sport;
	__u8 protocol;
	__u8 flags;
} __attribute__((packed));

enum ct_flags {
	CT_RX_CLOSING = 1 << 0,
	CT_TX_CLOSING = 1 << 1,
	CT_SEEN_NON_SYN = 1 << 4,
	CT_FROM_TUNNEL = 1 << 10,
	CT_OF_HOST = 1 << 11, /* this host itself began it, or went on with it */
	CT_OF_POD = 1 << 12, /* to a pod of this node, from another one, in whose share it counts */
	CT_SERVICE = 1 << 9, /* the host translates it: where it ends is for the backstop to check */
};

struct ct_entry {
	struct address gateway; /* that the connection is pinned to; none: it goes its ordinary way */
	__u64 packets;
	__u64 bytes;
	__u32 lifetime; /* when it expires, seconds of CLOCK_MONOTONIC; 0: condemned, as good as absent */
	__u16 flags;
	__be16 reverse_nat_index;
	__u16 ifindex;
	__u8 tx_flags_seen;
	__u8 rx_flags_seen;
	__u32 source_security_id;
	__u32 last_tx_report;
	__u32 last_rx_report;
	__u32 generation; /* under which the verdict was made; 0: it is not known what policies say */
	__u32 cookie; /* of the rules that allowed it */
	__u32 created; /* when it was made, or made anew for another connection; seconds */
	__u32 reserved;
};

/* sluice_nat*: translations. Keys are packets' plain tuples: OUT the original
 * one, whose value is the egress address and port; IN that of the replies,
 * whose value is the pod's. */

struct nat4_entry {
	__u64 created; /* nanoseconds of CLOCK_MONOTONIC */
	__u32 needs_ct; /* 1: goes with its conntrack entry */
	__u32 used; /* when it last translated a packet of the pod, coarse, seconds; 0: condemned, as good as absent */
	struct address tunnel; /* node that the pod's packets come from; none: the pod is here */
	__be32 addr;
	__be16 port;
	__u16 counter; /* of its traffic; 0: it is not counted */
};

struct nat6_entry {
	__u64 created;
	__u32 needs_ct;
	__u32 used;
	struct address tunnel;
	struct address addr;
	__be16 port;
	__u16 counter;
	__u16 pad[2];
};

/* sluice_frag*: ports of datagrams that came in fragments. */

struct frag4_key {
	__be32 daddr;
	__be32 saddr;
	__be16 id;
	__u8 protocol;
	__u8 pad;
};

struct frag6_key {
	struct address daddr;
	struct address saddr;
	__be32 id;
	__u8 protocol;
	__u8 pad[3];
};

struct frag_value {
	__be16 sport;
	__be16 dport;
};

/* sluice_shares: how many entries of a map pods have, and all together. sluice_ports: how
 * many ports of an egress address towards a destination. */

enum limited_map { /* as the garbage collection counts them */
	LIMITED_CT4_TCP = 0,
	LIMITED_CT4_ANY = 1,
	LIMITED_CT6_TCP = 2,
	LIMITED_CT6_ANY = 3,
	LIMITED_NAT4 = 4,
	LIMITED_NAT6 = 5,
	LIMITED_MAPS = 6,
};

struct share_key {
	struct address pod; /* none: all entries */
	__u32 map;	    /* enum limited_map */
	__u32 reached;	    /* 1: of connections to the pod, which others began */
};

struct port_key {
	struct address egress;
	struct address remote;
	struct address pod; /* none: all pods */
	__be16 port;	    /* of the remote side */
	__u8 protocol;
	__u8 pad[5];
};

struct share_value {
	__u32 used;  /* programs add what they create, and take nothing away */
	__u32 room;  /* of all: how many there may be; the agent says so of entries */
	__u32 found; /* by the garbage collection's pass */
	__u32 begun; /* used, when that pass began */
};

/* sluice_ledger: which pod has an egress address and port towards a destination. */

enum ledger_event { /* an end says why */
	LEDGER_BEGIN = 1,
	LEDGER_EXPIRED = 2,  /* the connection has ended, or was silent for its lifetime */
	LEDGER_ORPHAN = 3,   /* its connection is not known any more */
	LEDGER_RELEASED = 4, /* the pod, or the egress address, is gone */
	LEDGER_FLUSHED = 5,
	LEDGER_CONDEMNED = 6, /* a removal that had not been finished */
	LEDGER_REUSED = 7,    /* the connection had ended, and another one takes the port */
	LEDGER_RENEWED = 8,   /* the flow begins anew, or its egress address has moved away */
	LEDGER_UNDONE = 9,    /* not used: the flow's other record could not be made */
};

struct ledger_record {
	__u64 time;    /* nanoseconds of CLOCK_MONOTONIC */
	__u64 began;   /* the same, of the begin that an end is of */
	__u32 missing; /* records that had not fitted by then, modulo 2^32 */
	__u32 used;    /* of an end: last used by a packet, seconds */
	struct address pod; /* or of the host, if it is its own connection */
	struct address egress;
	struct address remote;
	__be16 pod_port;
	__be16 egress_port;
	__be16 remote_port;
	__u8 protocol;
	__u8 event; /* enum ledger_event */
};

/* sluice_missing: how many of these records did not fit, how many of them the agent has told of,
 * and what it says of itself. */

enum ledger_count { LEDGER_MISSED = 0, LEDGER_TOLD = 1, LEDGER_READER = 2 };

/* sluice_released: addresses whose connections are to be removed. */

struct released_key {
	struct address addr;
};

struct released_value {
	__u32 reserved;
};

/* Traffic that this node translates, by the policy that decided and the egress address. A
 * pair gets a counter, named in sluice_traffic, with its first translation, whose records
 * name it too. sluice_trafown says whose a counter is. */

#define TRAFFIC_COUNTERS 4096 /* counter 0 is none */

struct traffic_key {
	struct address egress;
	__u32 policy; /* an egress_value's */
	__u32 pad;
};

struct traffic_value {
	__u32 counter;
};

struct traffic_owner {
	__u32 policy; /* 0: the counter is free */
};

/* sluice_buckets: what has passed of traffic with a limit of bandwidth. */

#define LIMIT_BUCKETS 16384
#define LIMIT_BURST 100000000 /* nanoseconds at the rate */
#define LIMIT_QUEUE 64 /* packets that may wait for their departure */
#define LIMIT_PACKET 1500 /* bytes that these have at least */
#define LIMIT_WAIT 2000000000 /* nanoseconds that they may wait at most */

struct bucket_key {
	struct address pod; /* none: all of the policy's */
	__u32 policy;
	__u32 direction;
};

struct bucket_value {
	__u64 time; /* when what has passed would have, at the rate; nanoseconds of CLOCK_MONOTONIC */
};

/* A counter, of each CPU. Translations that began before it was this pair's do not count:
 * they may name it for another one that is gone. */
struct traffic_count {
	__u64 since; /* seconds of CLOCK_MONOTONIC */
	struct metric sent;
	struct metric received;
};
