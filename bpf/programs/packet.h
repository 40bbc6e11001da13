/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* What the programs know of a packet: its flow. */

#pragma once

#include "maps.h"

#define IPV4_MAPPED bpf_htonl(0xffff)
#define IPV4_FRAGMENT_OFFSET 0x1fff /* of frag_off, in units of 8 bytes */
#define IPV4_MORE_FRAGMENTS 0x2000
#define IPV6_EXTENSIONS_MAX 8 /* extension headers that are looked at */

#define ICMP4_ECHO_REPLY 0
#define ICMP4_UNREACHABLE 3
#define ICMP4_FRAG_NEEDED 4 /* code of the above */
#define ICMP4_ECHO 8
#define ICMP4_TIME_EXCEEDED 11
#define ICMP4_PARAMETER_PROBLEM 12

#define ICMP4_TIMESTAMP_REPLY 14
#define ICMP4_INFORMATION_REPLY 16
#define ICMP4_MASK_REPLY 18

#define ICMP6_TOO_BIG 2
#define ICMP6_TIME_EXCEEDED 3
#define ICMP6_ECHO 128
#define ICMP6_ECHO_REPLY 129
#define ICMP6_MULTICAST_LISTENER_FIRST 130
#define ICMP6_NEIGHBOUR_DISCOVERY_FIRST 133
#define ICMP6_NEIGHBOUR_DISCOVERY_LAST 137
#define ICMP6_ROUTER_SOLICITATION 133
#define ICMP6_ROUTER_ADVERTISEMENT 134
#define ICMP6_NEIGHBOUR_SOLICITATION 135
#define ICMP6_NEIGHBOUR_ADVERTISEMENT 136
#define ICMP6_REDIRECT 137
#define ICMP6_NODE_INFORMATION_REPLY 140
#define ICMP6_MULTICAST_LISTENER_2 143

#define DHCP4_SERVER 67
#define DHCP4_CLIENT 68
#define DHCP6_CLIENT 546
#define DHCP6_SERVER 547

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

#define TCP_CHECKSUM 16 /* offsets in the headers */
#define TCP_OFFSET 12
#define TCP_MIN 20
#define UDP_CHECKSUM 6
#define SCTP_CHECKSUM 8
#define UDP_HEADER 8
#define ICMP_CHECKSUM 2
#define ICMP_ID 4
#define ICMP_HEADER 8

/* The plain tuple of a packet. */
struct tuple {
	struct address saddr;
	struct address daddr;
	__be16 sport; /* of an ICMP echo request its identifier, whose reply has it as dport */
	__be16 dport;
	__u8 protocol;
	__u8 family;
	__u16 pad;
};

enum shape {
	SHAPE_UNTOUCHED = 0, /* not IP, or of neighbours: see neighbours_talk. Policies say nothing of it */
	SHAPE_MALFORMED,
	SHAPE_WHOLE,
	SHAPE_FIRST_FRAGMENT,
	SHAPE_LATER_FRAGMENT,
	SHAPE_ICMP_ERROR, /* about a packet of a flow */
};

struct packet {
	/* Of an ICMP error this is the flow that it is about, in the direction
	 * in which the error goes: the embedded tuple, reversed. */
	struct tuple flow;
	struct address source; /* in the IP header */
	__u16 l4;	       /* offsets from the start of the frame */
	__u16 inner_l3;	       /* of the packet in an ICMP error; of a fragment see set_fragment */
	__u16 inner_l4;
	__u8 shape;
	__u8 tcp_flags;
	__u8 icmp_type;
	__u8 hops;	       /* left: TTL or hop limit */
	__u8 header_protocol;  /* of an ICMP error: ICMP, and not that of its flow */
	bool unknown_fragment; /* its first fragment was not seen, so neither were its ports */
	bool fragment; /* or whole, with a fragment header */
	bool stray_error; /* an ICMP error, and not about what its destination sent to its source */
	__u64 time;	       /* when it came, nanoseconds of CLOCK_MONOTONIC, coarse */
};

static __always_inline struct address mapped(__be32 addr)
{
	struct address a = {.words = {0, 0, IPV4_MAPPED, addr}};

	return a;
}

static __always_inline bool is_ipv4(const struct address *a)
{
	return !a->halves[0] && a->words[2] == IPV4_MAPPED;
}

static __always_inline bool same_address(const struct address *a, const struct address *b)
{
	return a->halves[0] == b->halves[0] && a->halves[1] == b->halves[1];
}

static __always_inline bool no_address(const struct address *a)
{
	return !a->halves[0] && !a->halves[1];
}

static __always_inline struct tuple reversed(const struct tuple *t)
{
	struct tuple r = {
		.saddr = t->daddr, .daddr = t->saddr, .sport = t->dport, .dport = t->sport,
		.protocol = t->protocol, .family = t->family,
	};

	return r;
}

/* Reports whether a packet is to many. */
static __always_inline bool to_many(const struct tuple *t)
{
	if (t->family == FAMILY_IPV4) {
		__u32 daddr = bpf_ntohl(t->daddr.words[3]);

		return daddr >> 28 == 0xe || daddr == 0xffffffff;
	}
	return t->daddr.bytes[0] == 0xff;
}

static __always_inline bool link_local_address(const struct address *a, __u8 family)
{
	if (family == FAMILY_IPV4)
		return bpf_ntohl(a->words[3]) >> 16 == 0xa9fe;
	return a->bytes[0] == 0xfe && (a->bytes[1] & 0xc0) == 0x80;
}

/* Reports whether the packet stays on the link or the node, whatever its source: to one
 * or to many. */
static __always_inline bool link_local(const struct tuple *t)
{
	return to_many(t) || link_local_address(&t->daddr, t->family);
}

static __always_inline bool is_icmp(__u8 protocol)
{
	return protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6;
}

static __always_inline bool is_echo_reply(const struct packet *p)
{
	return is_icmp(p->flow.protocol) &&
	       p->icmp_type == (p->flow.family == FAMILY_IPV4 ? ICMP4_ECHO_REPLY : ICMP6_ECHO_REPLY);
}

/* Reports whether the packet opens a TCP connection. */
static __always_inline bool opens(const struct packet *p)
{
	return p->flow.protocol == IPPROTO_TCP && p->shape != SHAPE_ICMP_ERROR && p->shape != SHAPE_LATER_FRAGMENT &&
	       (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
}
