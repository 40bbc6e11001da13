/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* What a program at a netfilter hook gets, and the packet in it. */

#pragma once

#include "parse.h"
#include "skb.h"

struct rtnl_link_ops;

struct net_device {
	const struct rtnl_link_ops *rtnl_link_ops; /* of virtual devices, NULL of others */
} __attribute__((preserve_access_index));

struct nf_hook_state {
	__u8 hook;
	__u8 pf;
	struct net_device *out;
} __attribute__((preserve_access_index));

struct bpf_nf_ctx {
	const struct nf_hook_state *state;
	struct sk_buff *skb;
} __attribute__((preserve_access_index));

extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags, struct bpf_dynptr *ptr) __ksym;
extern void *bpf_dynptr_slice(const struct bpf_dynptr *ptr, __u32 offset, void *buffer, __u32 buffer__szk) __ksym;

#define NFPROTO_IPV4 2
#define NFPROTO_IPV6 10
#define NF_INET_LOCAL_IN 1

/* Of _nfct (linux/netfilter/nf_conntrack_common.h). */
#define NFCT_INFO 7UL
#define NFCT_NEW 2
#define NFCT_REPLY 3 /* and above */

/* Whether programs may read the kernel's memory: not if it is locked down. */
const volatile bool reads_kernel = true;

/* Reads the ports of a packet, or what there is instead; false if it has none but
 * should. */
static __noinline int read_ports(const struct bpf_dynptr *data, struct packet *p)
{
	struct tcp_start start = {};

	switch (p->flow.protocol) {
	case IPPROTO_TCP:
		if (bpf_dynptr_read(&start, sizeof(start), data, p->l4, 0))
			return false;
		p->tcp_flags = start.flags;
		break;
	case IPPROTO_UDP:
	case IPPROTO_SCTP:
		if (bpf_dynptr_read(&start, 4, data, p->l4, 0))
			return false;
		break;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		if (bpf_dynptr_read(&start, 8, data, p->l4, 0))
			return false;
		p->icmp_type = *(__u8 *)&start;
		echo_ports(&p->flow, p->icmp_type, (__be16)start.sequence);
		return true;
	default:
		return true;
	}
	p->flow.sport = start.sport;
	p->flow.dport = start.dport;
	return true;
}

/* Goes past the extension headers of an IPv6 packet; false if there are too many, or
 * they are not whole. */
static __noinline int past_extensions(const struct bpf_dynptr *data, struct packet *p)
{
	struct extension here;
	__u32 at = sizeof(struct ipv6hdr);

	for (int i = 0; i < IPV6_EXTENSIONS_MAX; i++) {
		switch (p->flow.protocol) {
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_DSTOPTS:
		case IPPROTO_AH:
		case IPPROTO_FRAGMENT:
			break;
		default:
			p->l4 = at;
			return true;
		}
		if (bpf_dynptr_read(&here, sizeof(here), data, at, 0))
			return false;
		if (p->flow.protocol == IPPROTO_FRAGMENT) {
			if (bpf_ntohs(here.offset) >> 3)
				p->shape = SHAPE_LATER_FRAGMENT;
			at += sizeof(here);
		} else {
			at += p->flow.protocol == IPPROTO_AH ? (here.length + 2) * 4 : (here.length + 1) * 8;
		}
		p->flow.protocol = here.next;
		if (p->shape == SHAPE_LATER_FRAGMENT)
			return true;
	}
	return false;
}

/* Reads a packet whose data begins with the IP header: addresses, and if they are
 * asked for, ports. The host's connection tracking has put fragments together, unless
 * it is off: then those behind the first have no ports. Returns false if it cannot. */
static __noinline int read_packet(struct bpf_nf_ctx *ctx, struct packet *p, bool ports)
{
	struct bpf_dynptr data;
	__u8 buffer[sizeof(struct ipv6hdr)] = {};

	p->shape = SHAPE_WHOLE;
	if (bpf_dynptr_from_skb((struct __sk_buff *)ctx->skb, 0, &data))
		return false;
	if (ctx->state->pf == NFPROTO_IPV4) {
		const struct iphdr *ip = bpf_dynptr_slice(&data, 0, buffer, sizeof(*ip));

		if (!ip)
			return false;
		p->flow.family = FAMILY_IPV4;
		p->flow.saddr = mapped(ip->saddr);
		p->flow.daddr = mapped(ip->daddr);
		p->flow.protocol = ip->protocol;
		p->l4 = ip->ihl * 4;
		if (bpf_ntohs(ip->frag_off) & IPV4_FRAGMENT_OFFSET)
			p->shape = SHAPE_LATER_FRAGMENT;
	} else {
		const struct ipv6hdr *ip = bpf_dynptr_slice(&data, 0, buffer, sizeof(*ip));

		if (!ip)
			return false;
		p->flow.family = FAMILY_IPV6;
		__builtin_memcpy(&p->flow.saddr, &ip->saddr, 16);
		__builtin_memcpy(&p->flow.daddr, &ip->daddr, 16);
		p->flow.protocol = ip->nexthdr;
	}
	if (!ports)
		return true;
	p->source = p->flow.saddr;
	if (p->flow.family == FAMILY_IPV6 && !past_extensions(&data, p))
		return false;
	p->header_protocol = p->flow.protocol;
	p->unknown_fragment = p->shape == SHAPE_LATER_FRAGMENT;
	return p->unknown_fragment || read_ports(&data, p);
}
