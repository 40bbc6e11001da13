/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* From the bytes of a frame to its flow. */

#pragma once

#include "fragment.h"

/* Returns the IP header, of which len bytes can be read, or NULL. */
static __always_inline void *ip_header(struct __sk_buff *ctx, __u32 len)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + ETH_HLEN + len <= end)
		return data + ETH_HLEN;
	if (bpf_skb_pull_data(ctx, ETH_HLEN + len))
		return NULL;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	return data + ETH_HLEN + len <= end ? data + ETH_HLEN : NULL;
}

static __always_inline bool icmp_error(__u8 family, __u8 type)
{
	if (family == FAMILY_IPV4)
		return type == ICMP4_UNREACHABLE || type == ICMP4_TIME_EXCEEDED || type == ICMP4_PARAMETER_PROBLEM;
	return type < ICMP6_ECHO; /* receivers have their protocols look at unknown ones, too */
}

/* Sets the ports of an echo from its identifier; false if it is no echo. */
static __always_inline bool echo_ports(struct tuple *t, __u8 type, __be16 id)
{
	if (type == (t->family == FAMILY_IPV4 ? ICMP4_ECHO : ICMP6_ECHO)) {
		t->sport = id;
		t->dport = 0;
		return true;
	}
	if (type == (t->family == FAMILY_IPV4 ? ICMP4_ECHO_REPLY : ICMP6_ECHO_REPLY)) {
		t->sport = 0;
		t->dport = id;
		return true;
	}
	return false;
}

/* The first bytes of a TCP, UDP or ICMP header. */
struct l4_start {
	__be16 words[4];
};

struct extension {
	__u8 next;
	__u8 length; /* in units of 8 bytes without the first 8; of AH, of 4 bytes without the first 8 */
	__be16 offset; /* of a fragment, in its upper 13 bits */
	__be32 id;
};

struct tcp_start {
	__be16 sport;
	__be16 dport;
	__be32 sequence;
	__be32 acknowledged;
	__u8 offset; /* of the data, in units of 4 bytes, in the upper 4 bits */
	__u8 flags;
} __attribute__((packed, aligned(2)));

/* Reports whether the packet in an ICMP error is not one that the error's destination has sent
 * to its source. */
static __always_inline bool is_stray(const struct packet *p, const struct tuple *inner)
{
	return !same_address(&inner->saddr, &p->flow.daddr) || !same_address(&inner->daddr, &p->source);
}

/* Reads the packet in an ICMP error. One that is too short, or no flow's, leaves
 * the packet as an ICMP packet without ports. Receivers may find a flow where this finds none:
 * in a later fragment, or behind extension headers. */
static __noinline void parse_embedded(struct __sk_buff *ctx, struct packet *p)
{
	struct tuple inner = {.family = p->flow.family};
	__u32 l3 = p->l4 + ICMP_HEADER, l4;
	struct l4_start start;

	p->stray_error = true;
	if (p->shape != SHAPE_WHOLE)
		return;
	if (inner.family == FAMILY_IPV4) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(ctx, l3, &ip, sizeof(ip)))
			return;
		inner.saddr = mapped(ip.saddr);
		inner.daddr = mapped(ip.daddr);
		p->stray_error = is_stray(p, &inner);
		if (ip.version != 4 || ip.ihl < 5 || ip.frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET))
			return;
		l4 = l3 + ip.ihl * 4;
		inner.protocol = ip.protocol;
	} else {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(ctx, l3, &ip, sizeof(ip)))
			return;
		__builtin_memcpy(&inner.saddr, &ip.saddr, sizeof(inner.saddr));
		__builtin_memcpy(&inner.daddr, &ip.daddr, sizeof(inner.daddr));
		p->stray_error = is_stray(p, &inner);
		if (ip.version != 6)
			return;
		l4 = l3 + sizeof(ip);
		inner.protocol = ip.nexthdr;
		/* That a datagram is too big is said of its first fragment. */
		if (inner.protocol == IPPROTO_FRAGMENT) {
			struct extension fragment;

			if (bpf_skb_load_bytes(ctx, l4, &fragment, sizeof(fragment)) ||
			    bpf_ntohs(fragment.offset) >> 3)
				return;
			l4 += sizeof(fragment);
			inner.protocol = fragment.next;
		}
	}
	if (bpf_skb_load_bytes(ctx, l4, &start, sizeof(start)))
		return;
	switch (inner.protocol) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_SCTP:
		inner.sport = start.words[0];
		inner.dport = start.words[1];
		break;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		if (!echo_ports(&inner, *(__u8 *)&start, start.words[2]))
			return;
		break;
	default:
		return;
	}
	/* An error goes to who sent the packet: all else is forged. */
	if (!same_address(&inner.saddr, &p->flow.daddr))
		return;
	p->flow = reversed(&inner);
	p->inner_l3 = l3;
	p->inner_l4 = l4;
	p->shape = SHAPE_ICMP_ERROR;
}

/* Reads the beginning of a header: from the packet itself, or if that is in
 * pieces by the helper, which is slower. */
static __always_inline bool read_l4(struct __sk_buff *ctx, __u32 l4, void *start, __u32 size)
{
	void *header = (void *)(long)ctx->data + (l4 & 0x7fff);

	if (header + size > (void *)(long)ctx->data_end)
		return !bpf_skb_load_bytes(ctx, l4, start, size);
	__builtin_memcpy(start, header, size);
	return true;
}

/* Reports whether it is of neighbour discovery, or of the membership in groups (MLD, IGMP).
 * The same with other hop limits, which receivers ignore, or not to a group, is like any
 * other traffic. */
static __always_inline bool neighbours_talk(const struct packet *p)
{
	if (p->flow.family == FAMILY_IPV4)
		return p->hops == 1 && to_many(&p->flow);
	if (p->icmp_type >= ICMP6_NEIGHBOUR_DISCOVERY_FIRST && p->icmp_type <= ICMP6_NEIGHBOUR_DISCOVERY_LAST)
		return p->hops == 255;
	return (p->icmp_type == ICMP6_MULTICAST_LISTENER_2 ||
		(p->icmp_type >= ICMP6_MULTICAST_LISTENER_FIRST &&
		 p->icmp_type < ICMP6_NEIGHBOUR_DISCOVERY_FIRST)) &&
	       p->hops == 1 && to_many(&p->flow) &&
	       (no_address(&p->flow.saddr) || link_local_address(&p->flow.saddr, FAMILY_IPV6));
}

/* Reads the ports, from a header that ends within the IP packet. */
static __always_inline void parse_l4(struct __sk_buff *ctx, struct packet *p, __u32 end)
{
	struct tcp_start tcp;
	struct l4_start start;

	switch (p->flow.protocol) {
	case IPPROTO_TCP:
		if (p->l4 + TCP_MIN > end || !read_l4(ctx, p->l4, &tcp, sizeof(tcp)) || tcp.offset >> 4 < 5 ||
		    p->l4 + (tcp.offset >> 4) * 4u > end)
			break;
		p->tcp_flags = tcp.flags;
		p->flow.sport = tcp.sport;
		p->flow.dport = tcp.dport;
		return;
	case IPPROTO_UDP:
		if (p->l4 + UDP_HEADER > end || !read_l4(ctx, p->l4, &start, sizeof(start)) ||
		    bpf_ntohs(start.words[2]) < UDP_HEADER ||
		    (p->shape == SHAPE_WHOLE && !ctx->gso_size && p->l4 + bpf_ntohs(start.words[2]) > end))
			break;
		p->flow.sport = start.words[0];
		p->flow.dport = start.words[1];
		return;
	case IPPROTO_SCTP:
		if (p->l4 + 4u > end || bpf_skb_load_bytes(ctx, p->l4, &start, 4))
			break;
		p->flow.sport = start.words[0];
		p->flow.dport = start.words[1];
		return;
	case IPPROTO_IGMP:
		if (p->flow.family == FAMILY_IPV4 && p->shape == SHAPE_WHOLE && neighbours_talk(p))
			p->shape = SHAPE_UNTOUCHED;
		return;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		if ((p->flow.protocol == IPPROTO_ICMP) != (p->flow.family == FAMILY_IPV4))
			return; /* the other family's: just some protocol */
		if (p->l4 + ICMP_HEADER > end || !read_l4(ctx, p->l4, &start, sizeof(start)))
			break;
		p->icmp_type = *(__u8 *)&start;
		if (echo_ports(&p->flow, p->icmp_type, start.words[2]))
			return;
		if (p->flow.family == FAMILY_IPV6 && neighbours_talk(p))
			p->shape = SHAPE_UNTOUCHED;
		else if (icmp_error(p->flow.family, p->icmp_type))
			parse_embedded(ctx, p);
		return;
	default:
		return;
	}
	p->shape = SHAPE_MALFORMED;
}

static __always_inline void parse4(struct __sk_buff *ctx, struct packet *p)
{
	struct iphdr *ip = ip_header(ctx, sizeof(*ip));
	__u16 fragment;
	__u32 length;
	__be16 id;

	p->shape = SHAPE_MALFORMED;
	p->flow.family = FAMILY_IPV4;
	if (!ip || ip->version != 4 || ip->ihl < 5)
		return;
	length = bpf_ntohs(ip->tot_len);
	if (!length && ctx->gso_size)
		length = ctx->len - ETH_HLEN; /* longer than the field can say */
	if (length < ip->ihl * 4u || ETH_HLEN + length > ctx->len)
		return;
	p->flow.saddr = mapped(ip->saddr);
	p->flow.daddr = mapped(ip->daddr);
	p->source = p->flow.saddr;
	p->flow.protocol = ip->protocol;
	p->header_protocol = ip->protocol;
	p->hops = ip->ttl;
	p->l4 = ETH_HLEN + ip->ihl * 4;
	id = ip->id;
	fragment = bpf_ntohs(ip->frag_off);

	p->fragment = fragment & (IPV4_FRAGMENT_OFFSET | IPV4_MORE_FRAGMENTS);
	if (fragment & IPV4_FRAGMENT_OFFSET) {
		/* One that overlaps the TCP header could change it (RFC 1858). */
		if (p->flow.protocol == IPPROTO_TCP && (fragment & IPV4_FRAGMENT_OFFSET) < 3)
			return;
		p->shape = SHAPE_LATER_FRAGMENT;
		set_fragment(p, id);
		find_ports(p);
		return;
	}
	p->shape = fragment & IPV4_MORE_FRAGMENTS ? SHAPE_FIRST_FRAGMENT : SHAPE_WHOLE;
	parse_l4(ctx, p, ETH_HLEN + length);
	if (p->shape == SHAPE_FIRST_FRAGMENT)
		set_fragment(p, id);
}

static __always_inline void parse6(struct __sk_buff *ctx, struct packet *p)
{
	struct ipv6hdr *ip = ip_header(ctx, sizeof(*ip));
	struct extension ext = {};
	bool fragment = false;
	__u32 l4, end;
	__u8 next;

	p->shape = SHAPE_MALFORMED;
	p->flow.family = FAMILY_IPV6;
	if (!ip || ip->version != 6)
		return;
	end = ETH_HLEN + sizeof(*ip) + bpf_ntohs(ip->payload_len);
	if (!ip->payload_len && ctx->gso_size)
		end = ctx->len;
	if (end > ctx->len)
		return;
	__builtin_memcpy(&p->flow.saddr, &ip->saddr, sizeof(p->flow.saddr));
	__builtin_memcpy(&p->flow.daddr, &ip->daddr, sizeof(p->flow.daddr));
	p->source = p->flow.saddr;
	p->hops = ip->hop_limit;
	next = ip->nexthdr;
	l4 = ETH_HLEN + sizeof(*ip);

	for (int i = 0; i < IPV6_EXTENSIONS_MAX; i++) {
		struct extension here;

		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS && next != IPPROTO_AH &&
		    next != IPPROTO_FRAGMENT)
			break;
		if (l4 + sizeof(here) > end || bpf_skb_load_bytes(ctx, l4, &here, sizeof(here)))
			return;
		if (next == IPPROTO_FRAGMENT) {
			if (fragment)
				return;
			fragment = true;
			ext = here;
			l4 += sizeof(here);
		} else {
			l4 += next == IPPROTO_AH ? (here.length + 2) * 4 : (here.length + 1) * 8;
		}
		next = here.next;
		if (fragment && bpf_ntohs(ext.offset) >> 3)
			break; /* what follows is payload */
	}
	if (l4 > end || l4 > 0xffff)
		return;
	p->l4 = l4;
	p->fragment = fragment;
	p->flow.protocol = next;
	p->header_protocol = next;
	if (fragment && bpf_ntohs(ext.offset) >> 3) {
		if (next == IPPROTO_TCP && bpf_ntohs(ext.offset) >> 3 < 3)
			return;
		p->shape = SHAPE_LATER_FRAGMENT;
		set_fragment(p, ext.id);
		find_ports(p);
		return;
	}
	if (next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING || next == IPPROTO_DSTOPTS || next == IPPROTO_AH ||
	    next == IPPROTO_FRAGMENT)
		return; /* too many */
	/* A fragment that is first and last is a whole packet with a header more. */
	p->shape = fragment && bpf_ntohs(ext.offset) & 1 ? SHAPE_FIRST_FRAGMENT : SHAPE_WHOLE;
	parse_l4(ctx, p, end);
	if (p->shape == SHAPE_FIRST_FRAGMENT)
		set_fragment(p, ext.id);
}

/* Nanoseconds of CLOCK_MONOTONIC when the present tick began. The kernel's coarse
 * clock says the same, but takes a sixth of the time that a packet takes here. */
static __always_inline __u64 time_of_tick(void)
{
	__u64 jiffies = bpf_jiffies64();
	__u32 index = 0;
	struct clock *clock = bpf_map_lookup_elem(&sluice_clock, &index);

	if (!clock)
		return bpf_ktime_get_coarse_ns();
	if (clock->jiffies != jiffies) {
		clock->time = bpf_ktime_get_coarse_ns();
		clock->jiffies = jiffies;
	}
	return clock->time;
}

SUBPROGRAM int parse(struct __sk_buff *ctx, struct packet *p)
{
	if (!p)
		return 0;
	p->time = time_of_tick();
	p->shape = SHAPE_UNTOUCHED;
	if (ctx->protocol == bpf_htons(ETH_P_IP))
		parse4(ctx, p);
	else if (ctx->protocol == bpf_htons(ETH_P_IPV6))
		parse6(ctx, p);
	/* The kernel would take tags off, and what is in them past the programs. */
	else if (ctx->protocol == bpf_htons(ETH_P_8021Q) || ctx->protocol == bpf_htons(ETH_P_8021AD))
		p->shape = SHAPE_MALFORMED;
	/* IPv4-mapped addresses are on no wire: here they would pass for IPv4 ones. */
	if (p->flow.family == FAMILY_IPV6 && (is_ipv4(&p->flow.saddr) || is_ipv4(&p->flow.daddr)))
		p->shape = SHAPE_MALFORMED;
	return 0;
}
