/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* What the programs tell the agent of packets, in sluice_metrics and sluice_events.
 * As of layout.h, the Go side is in package bpf. */

#pragma once

#include "layout.h"

/* Why a packet went the way it did. Numbers below REASON_DROPS are no drops. */
enum reason {
	REASON_PASSED = 0,	  /* left to the host's stack */
	REASON_TO_GATEWAY = 1,	  /* sent to a gateway */
	REASON_TRANSLATED = 2,	  /* sent out with its egress address */
	REASON_REPLY_LOCAL = 3,	  /* reply, delivered to a pod here */
	REASON_REPLY_OVERLAY = 4, /* reply, sent to the pod's node */
	REASON_HOST_TRANSLATED = 5, /* of the host, given another port */
	REASON_OVERLAY_UNSIGNED = 6, /* taken from the overlay without a proof of its origin */
	REASON_EVENT_LOST = 15,	  /* counts events that sluice_events had no room for */

	REASON_DROPS = 16,
	REASON_MALFORMED = 16,		 /* truncated, or its lengths contradict each other */
	REASON_UNKNOWN_SOURCE = 17,	 /* sent by a pod from an address that is not its own, or claims one */
	REASON_POD_NOT_READY = 18,	 /* held: what policies want of the pod is not in the kernel yet */
	REASON_NO_GATEWAY = 19,
	REASON_NO_EGRESS_IP = 20,
	REASON_NO_SNAT_PORT = 21,	 /* all ports of the egress address towards the destination are taken */
	REASON_UNKNOWN_NODE = 22,	 /* came over the overlay from no node of the cluster, or not from the pod's */
	REASON_NO_RULE = 23,		 /* came over the overlay, and nothing here is to be done with it */
	REASON_PREDATES_POLICY = 24,	 /* older than the policy: it had no egress address */
	REASON_UNSUPPORTED_PROTOCOL = 25, /* under an egress rule, but cannot be translated */
	REASON_UNKNOWN_FRAGMENT = 26,	 /* under a policy, but its first fragment was not seen, or dropped */
	REASON_TOO_BIG = 27,		 /* answered with the MTU */
	REASON_TTL_EXCEEDED = 28,
	REASON_NOT_CHECKED = 29,	 /* backstop: the pod's device has no program yet */
	REASON_SERVICE_OUTSIDE = 30,	 /* backstop: to a service whose endpoint is outside, under an egress rule */
	REASON_NAT_FAILED = 31,		 /* the translation could not be recorded */
	REASON_WRITE_FAILED = 32,	 /* the packet could not be changed */
	REASON_NOT_CONFIGURED = 33,	 /* sluice_config is empty */
	REASON_UNKNOWN_DESTINATION = 34, /* to a pod's device at no address of the pod, or off its link */
	REASON_POLICY_DENIED = 35,	 /* no network policy allows it */
	REASON_POLICY_RULE = 36,	 /* a rule of a network policy denies it */
	REASON_OVERLAY_PORT = 37,	 /* to the overlay's port of a node, and not sent by a node itself */
	REASON_OVERLAY_KEY = 38,	 /* came over the overlay without a proof that its sender has the key */
	REASON_CONNECTION_SHARE = 39,	 /* the pod has its share of a map of connections or translations */
	REASON_PORT_SHARE = 40,		 /* the pod has its share of the egress address's ports towards the destination */
	REASON_NOT_OWNED = 41,		 /* of an egress address that moves, without its lease */
	REASON_NO_PORT_BLOCK = 42,	 /* this node has no ports of the egress address yet */
	REASON_OTHER_BLOCK = 43,	 /* by a port of an egress address that its node has not */
	REASON_BANDWIDTH = 44,		 /* more than the limit of its egress policy, or of its pod in it */
	REASON_COUNT = 48,
};

enum program {
	PROGRAM_FROM_POD = 1,
	PROGRAM_TO_POD = 2,
	PROGRAM_FROM_OVERLAY = 3,
	PROGRAM_FROM_NETDEV = 4,
	PROGRAM_TO_NETDEV = 5,
	PROGRAM_BACKSTOP = 6,
};

/* sluice_metrics: index is reason * DIRECTIONS + direction, as seen from the pod. */

enum direction { DIRECTION_EGRESS = 0, DIRECTION_INGRESS = 1, DIRECTIONS = 2 };

struct metric {
	__u64 packets;
	__u64 bytes;
};

/* sluice_events. */

enum event_kind { EVENT_DROP = 1, EVENT_FLOW = 2 };

struct event {
	__u64 time; /* nanoseconds of CLOCK_MONOTONIC */
	__u8 kind;
	__u8 reason;
	__u8 program;
	__u8 direction;
	__u8 family;
	__u8 protocol;
	__u8 tcp_flags;
	__u8 icmp_type;
	struct address saddr; /* of the packet; of an ICMP error, of the flow that it is about, reversed */
	struct address daddr;
	__be16 sport;
	__be16 dport;
	__u32 length; /* bytes, with the Ethernet header */
	__u32 ifindex;
	__u32 egress_ruleset; /* 0 if none was looked up */
	__u32 group;
	__u32 cookie;
	struct address gateway; /* flow: where it is pinned to */
	struct address egress;	/* flow on the gateway: what it leaves with */
	__be16 egress_port;
	__u8 slot; /* of the maps that were looked into: numbers mean something in one only */
	__u8 pad[5];
};
